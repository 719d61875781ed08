package seccomp

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// The filter asks about every call that Decide refuses, tells of those that are
// told, answers EBUSY to a listener of the command's own, and is otherwise Filter.
func TestNotifyFilter(t *testing.T) {
	for _, a := range arches {
		t.Run(archName(a), func(t *testing.T) {
			filter := decode(encode(a.assembleWith(Config{}.notifies)))
			for _, nr := range numbers() {
				name := ""
				if c := a.byNumber(int(nr)); c != nil {
					name = c.name
				}
				values := []uint64{0, none}
				if c := a.byNumber(int(nr)); c != nil && (c.action >= ruled || name == "sendto" || name == "seccomp" || name == "prctl") {
					values = interesting()
				}
				for _, x := range values {
					for _, args := range [][6]uint64{{x}, {0, x}, {0, 1, x}, {none, none, none, x}, {0, 0, 0, 0, x}} {
						want := asked(name, args, a.decideNotified(nr, args, Config{}))
						if got := interpret(t, filter, seccompData{nr, a.audit, args}); got != want {
							t.Fatalf("call %d (%s) %#x: filter %#x, want %#x", nr, name, args, got, want)
						}
					}
				}
			}
		})
	}
}

func asked(name string, args [6]uint64, plain Verdict) Verdict {
	switch {
	case plain == verdictRefuse, slices.Contains([]string{"execve", "execveat", "exit_group", "connect", "bind"}, name):
		return verdictNotify
	case name == "prctl" && uint32(args[0]) == unix.PR_SET_MM:
		return verdictNotify
	case name == "sendto" && args[4] != 0:
		return verdictNotify
	case name == "seccomp" && args[1]&unix.SECCOMP_FILTER_FLAG_NEW_LISTENER != 0:
		return verdictBusy
	}
	return plain
}

// What the policy grants is not asked about.
func TestNotifyFilterGranted(t *testing.T) {
	for _, a := range arches {
		filter := decode(encode(a.assembleWith(Config{Extra: debugger}.notifies)))
		for _, name := range debugger {
			nr := uint32(a.byName(name).nr)
			if got := interpret(t, filter, seccompData{nr, a.audit, [6]uint64{}}); got != verdictAllow {
				t.Errorf("%s: %#x", name, got)
			}
		}
	}
	if _, err := (Config{Extra: []string{"bpf"}}).NotifyFilter(); err == nil {
		t.Error("bpf was granted")
	}
	own, err := (Config{}).NotifyFilter()
	if err != nil || len(own) > 8*4096 {
		t.Errorf("%d bytes, %v", len(own), err)
	}
}
