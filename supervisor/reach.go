package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/agentguard/agentguard/trace"
)

// checkReach refuses grants that would show, besides what they name, what no
// run may see: the runtime directory with its locks and pinned programs, or a
// file system that shows or steers the machine, mounted somewhere below.
func checkReach(entries []Entry, runtime string, mountinfo []byte) error {
	mounts := machineMounts(mountinfo)
	dirs := machineDirs(runtime)
	for i := range entries {
		e := &entries[i]
		real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(e.open.File.Fd())))
		if err != nil {
			return err
		}
		if within(real, runtime) || within(runtime, real) || reached(entries[i:i+1], dirs) != nil {
			return &Refusal{
				What:   fmt.Sprintf("%s reaches %s, where agentguard keeps its pinned programs and locks", trace.Quote(e.From), runtime),
				Clause: e.Clause, Remedy: lessOf(e.Clause),
			}
		}
		for _, m := range mounts {
			if within(m.at, real) && m.at != real {
				return &Refusal{
					What:   fmt.Sprintf("%s holds a %s file system at %s, which shows or steers the machine", trace.Quote(e.From), m.kind, trace.Quote(m.at)),
					Clause: e.Clause, Remedy: "unmount it, or grant the parts beside it",
				}
			}
		}
	}
	return nil
}

// lessOf is what to do about a grant of too much. Where nobody has named a workspace it
// is the current directory, which is / in a systemd unit and in a container.
func lessOf(clause string) string {
	if clause == clauseWorkspace+" (default)" {
		return "the workspace is the current directory: cd into a project, or name one with -w DIR"
	}
	return "grant less"
}

// machineKinds are the file systems of machineFS by name.
var machineKinds = map[string]bool{
	"proc": true, "sysfs": true, "cgroup": true, "cgroup2": true, "bpf": true, "debugfs": true, "tracefs": true,
	"securityfs": true, "efivarfs": true, "configfs": true, "nsfs": true, "binder": true, "selinuxfs": true,
}

type machineMount struct{ at, kind string }

// machineMounts lists where such file systems are mounted (proc_pid_mountinfo(5)).
func machineMounts(mountinfo []byte) []machineMount {
	var out []machineMount
	for line := range bytes.Lines(mountinfo) {
		left, right, ok := bytes.Cut(line, []byte(" - "))
		kind, _, _ := bytes.Cut(right, []byte(" "))
		if !ok || !machineKinds[string(kind)] {
			continue
		}
		if fields := strings.SplitN(string(left), " ", 6); len(fields) == 6 {
			out = append(out, machineMount{unescapeMount(fields[4]), string(kind)})
		}
	}
	return out
}

// unescapeMount undoes the octal escapes of mountinfo: \\040 is a space.
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
