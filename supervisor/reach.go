package supervisor

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/agentguard/agentguard/trace"
)

// checkReach refuses grants that would show, besides what they name, what no
// run may see: the runtime directory with its locks and pinned programs, or a
// file system that shows or steers the machine, mounted somewhere below.
func checkReach(entries []Entry, runtime string) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	mounts, err := machineMounts(f)
	if err != nil {
		return err
	}
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
				Clause: e.Clause, Remedy: "grant less",
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

// machineKinds are the file systems of machineFS by name.
var machineKinds = map[string]bool{
	"proc": true, "sysfs": true, "cgroup": true, "cgroup2": true, "bpf": true, "debugfs": true, "tracefs": true,
	"securityfs": true, "efivarfs": true, "configfs": true, "nsfs": true, "binder": true, "selinuxfs": true,
}

type machineMount struct{ at, kind string }

// machineMounts lists where such file systems are mounted (proc_pid_mountinfo(5)).
func machineMounts(r io.Reader) ([]machineMount, error) {
	var out []machineMount
	s := bufio.NewScanner(io.LimitReader(r, 64<<20))
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		left, right, ok := strings.Cut(s.Text(), " - ")
		fields, kind := strings.Fields(left), strings.Fields(right)
		if ok && len(fields) >= 5 && len(kind) > 0 && machineKinds[kind[0]] {
			out = append(out, machineMount{unescapeMount(fields[4]), kind[0]})
		}
	}
	return out, s.Err()
}

// unescapeMount undoes the octal escapes of mountinfo: \\040 is a space.
func unescapeMount(s string) string {
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
