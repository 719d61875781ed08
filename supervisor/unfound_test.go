package supervisor

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/google/go-cmp/cmp"

	"github.com/agentguard/agentguard/bpf"
)

func TestShellNames(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"sh: 1: mytool: not found\n", []string{"mytool"}},
		{"./run.sh: 12: mytool: not found\r\n", []string{"mytool"}},
		{"sh: mytool: not found\n", []string{"mytool"}},
		{"bash: line 1: mytool: command not found\n", []string{"mytool"}},
		{"zsh:1: command not found: mytool\n", []string{"mytool"}},
		{"fish: Unknown command: mytool\n", []string{"mytool"}},
		{"make: mytool: No such file or directory\nmake[1]: other: Command not found", []string{"mytool", "other"}},
		{"building\nsh: 1: a: not found\nsh: 2: b: not found\nok\n", []string{"a", "b"}},
		{"cat: data: No such file or directory\n", nil},
		{"sh: 1: ./run: not found\nsh: 1: /opt/x: not found\n", nil},
		{"error: the page was not found\nhttp: 404 page: not found", nil},
		{"sh: 1: a b: not found\nsh: 1: \x1b[31mx: not found\nsh: 1: : not found\n: not found\nnot found", nil},
	} {
		if got := shellNames([]byte(c.text)); !cmp.Equal(got, c.want) {
			t.Errorf("%q: got %q, want %q", c.text, got, c.want)
		}
	}
	if got := shellNames(bytesOf("sh: 1: x: not found\n", 10000)); len(got) > maxUnfound {
		t.Errorf("%d names", len(got))
	}
}

func bytesOf(line string, n int) []byte {
	return slices.Repeat([]byte(line), n)
}

// A search by execve is in vain when it ends without an exec of that name.
func TestUnfound(t *testing.T) {
	exit := func(pid uint32) bpf.Event {
		return bpf.Event{Type: bpf.Exit, Phase: bpf.Command, TGID: pid, TID: pid}
	}
	envelope := tried(7, unix.ENOENT, "/usr/bin/tool")
	envelope.Phase = bpf.Envelope
	for _, c := range []struct {
		name   string
		events []bpf.Event
		want   []string
	}{
		{"nowhere", []bpf.Event{tried(7, unix.ENOENT, "/usr/bin/tool"), tried(7, unix.ENOENT, "/bin/tool"), exit(7)}, []string{"tool"}},
		{"the run ends", []bpf.Event{tried(7, unix.ENOENT, "/usr/bin/tool")}, []string{"tool"}},
		{"found", []bpf.Event{tried(7, unix.ENOENT, "/usr/bin/tool"), execEvent(7, "/bin/tool", "tool\x00", 5), exit(7)}, nil},
		{"another instead", []bpf.Event{tried(7, unix.ENOENT, "/usr/bin/tool"), tried(7, unix.ENOENT, "/usr/bin/sh"), execEvent(7, "/bin/sh", "sh\x00", 3)}, []string{"tool"}},
		{"not of PATH", []bpf.Event{tried(7, unix.ENOENT, "/opt/x/tool"), exit(7)}, nil},
		{"refused", []bpf.Event{tried(7, unix.EACCES, "/usr/bin/tool"), exit(7)}, nil},
		{"our own", []bpf.Event{envelope, exit(7)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, r := record(t, recordPlan())
			r.unfound.dirs = []string{"/usr/bin", "/bin"}
			for i := range c.events {
				must(t, r.event(&c.events[i]))
			}
			if got := r.unfound.all(); !cmp.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
