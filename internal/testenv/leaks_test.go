package testenv

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Each kind of leak is seen while it is there, and not afterwards. (A mount
// would need root and a namespace: its list is read like the others.)
func TestLeaks(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		Missing(t, "procfs", err.Error())
	}
	before := held()
	f, err := os.Open(".")
	if err != nil {
		t.Fatal(err)
	}
	expectLeak(t, before, "descriptor ")
	f.Close()

	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	expectLeak(t, before, "child process ")
	_ = cmd.Process.Kill()
	time.Sleep(time.Millisecond)
	expectLeak(t, before, "child process ") // or its zombie
	_ = cmd.Wait()

	if left := leaks(before, time.Second); left != nil {
		t.Errorf("nothing is left, but: %q", left)
	}
	if len(mounts()) == 0 {
		t.Error("no mount at all")
	}
}

func expectLeak(t *testing.T, before map[string]bool, prefix string) {
	t.Helper()
	for _, l := range leaks(before, 0) {
		if strings.HasPrefix(l, prefix) {
			return
		}
	}
	t.Errorf("no leak of a %sis seen", prefix)
}

func TestCgroupName(t *testing.T) {
	a, b := CgroupName(), CgroupName()
	if a == b || !strings.HasPrefix(a, cgroupPrefix()) {
		t.Errorf("%q, %q", a, b)
	}
}
