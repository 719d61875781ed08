//go:build linux

package initproc

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// B18 (MEDIUM, memory safety): a plan with 251 descriptors is taken and fds[250] is written, one past
// init.c's array: the control buffer is 1024 bytes after the union's padding, room for 252. Add
// `if (count - 1 > MAX_FDS) quit(1);` in receive(), and let send() refuse more than 250 files with a sentence.
func TestBugTooManyDescriptors(t *testing.T) {
	p, _ := born(t, &Program{})
	if err := p.Locked(limit); err != nil {
		t.Fatal(err)
	}
	plan := &Program{}
	for range 251 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		plan.File(int(f.Fd()))
	}
	plan.Exec("true", unix.SYS_EXECVE, true, plan.String("/bin/true"), plan.Strings(nil), plan.Strings(nil))
	if err := p.Exec(plan, limit); err == nil {
		t.Error("251 descriptors were taken")
	}
}

// B19 (LOW): when a candidate was EACCES and a later one ENOENT, the error names the last candidate with
// the first one's errno ("execve(/nowhere): permission denied").
func TestBugStepErrorNamesItsCandidate(t *testing.T) {
	p, _ := born(t, &Program{})
	if err := p.Locked(limit); err != nil {
		t.Fatal(err)
	}
	plan := &Program{}
	plan.Exec("execve(/etc/passwd)", unix.SYS_EXECVE, true, plan.String("/etc/passwd"), plan.Strings(nil), plan.Strings(nil))
	plan.Exec("execve(/nowhere)", unix.SYS_EXECVE, false, plan.String("/nowhere"), plan.Strings(nil), plan.Strings(nil))
	if err := p.Exec(plan, limit); err == nil || err.Error() != "exec: execve(/etc/passwd): permission denied" {
		t.Errorf("%v", err)
	}
}
