package supervisor

import (
	"fmt"
	"os"
	"strconv"

	"github.com/agentguard/agentguard/internal/mountinfo"
	"github.com/agentguard/agentguard/trace"
)

// checkReach refuses grants that would show, besides what they name, what no
// run may see: the runtime directory with its locks and pinned programs, or a
// file system that shows or steers the machine, mounted somewhere below.
func checkReach(entries []Entry, runtime string, table []byte) error {
	mounts := machineMounts(table)
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
			if within(m.Point, real) && m.Point != real {
				return &Refusal{
					What:   fmt.Sprintf("%s holds a %s file system at %s, which shows or steers the machine", trace.Quote(e.From), m.Kind, trace.Quote(m.Point)),
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

// machineMounts lists where such file systems are mounted.
func machineMounts(table []byte) []mountinfo.Mount {
	var out []mountinfo.Mount
	for m := range mountinfo.All(table) {
		if machineKinds[m.Kind] {
			out = append(out, m)
		}
	}
	return out
}
