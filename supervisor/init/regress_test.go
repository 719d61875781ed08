//go:build linux

package initproc

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A plan with one descriptor more than init has room for is refused.
func TestTooManyDescriptors(t *testing.T) {
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

// Where an earlier candidate was not executable, the error names that one.
func TestStepErrorNamesItsCandidate(t *testing.T) {
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
