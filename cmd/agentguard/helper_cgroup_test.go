package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/cgroup"
)

// ownCgroup makes a cgroup with limits of memory and tasks, one more in it, and returns the
// files by which a process enters the inner one.
func (s *service) ownCgroup(name, memory, tasks string) (enter []string) {
	t := s.t
	t.Helper()
	layout, err := cgroup.Detect()
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]bool{}
	for controller, limit := range map[string][2]string{cgroup.Memory: {"memory.max", memory}, cgroup.Pids: {"pids.max", tasks}} {
		root := layout.V1[controller]
		if root == "" {
			root = layout.Unified
		} else if controller == cgroup.Memory {
			limit[0] = "memory.limit_in_bytes"
		}
		dir := filepath.Join(root, name)
		if !made[dir] {
			made[dir] = true
			for _, d := range []string{dir, filepath.Join(dir, "in")} {
				if err := os.Mkdir(d, 0o755); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { s.until(d+" is removed", func() bool { return unix.Rmdir(d) == nil }) }) // busy until its last task has let go of it
			}
			enter = append(enter, filepath.Join(dir, "in/cgroup.procs"))
		}
		if err := os.WriteFile(filepath.Join(dir, limit[0]), []byte(limit[1]), 0); err != nil {
			t.Fatal(err)
		}
	}
	if len(layout.V1) == 0 { // rates are taken over from v2 alone
		if err := os.WriteFile(filepath.Join(layout.Unified, name, "cpu.max"), []byte("50000 100000"), 0); err != nil {
			t.Fatal(err)
		}
		s.rates = true
	}
	return enter
}

// What bounds the caller's own processes bounds its runs, and the plan says so.
func TestHelperCallersCgroup(t *testing.T) {
	s := serveUsers(t)
	name := "agentguard-test-caller-" + strconv.Itoa(os.Getpid())
	s.works() // controllers are on from the first run on
	enter := s.ownCgroup(name, "100663296", "40")
	inside := func(args ...string) (string, string, int) {
		script := "for f in " + strings.Join(enter, " ") + `; do echo $$ >$f || exit 9; done; exec "$@"`
		cmd := exec.Command("/bin/sh", append([]string{
			"-c", script, "sh", "setpriv", "--reuid=" + strconv.Itoa(ann), "--regid=" + strconv.Itoa(ann), "--clear-groups", agentguard(),
		}, args...)...)
		user := s.as(ann, "true")
		cmd.Dir, cmd.Env = user.Dir, user.Env
		return s.finish(cmd)
	}
	out, errs, status := inside("exec", "--dry-run", "--", "true")
	for _, want := range []string{"memory 96.0 MiB, tasks 40", "memory: the caller's cgroup /" + name + "\n", "tasks: the caller's cgroup /" + name + "\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("the plan lacks %q: %d %q\n%s", want, status, errs, out)
		}
	}
	if want := "cpu.max 50000 100000: the caller's cgroup /" + name + "\n"; strings.Contains(out, want) != s.rates {
		t.Errorf("%q: %s", want, out)
	}
	if out, errs, _ := inside("exec", "-q", "--", "cat", "/sys/fs/cgroup/cpu.max"); s.rates && out != "50000 100000\n" {
		t.Errorf("the run's own: %q %q", out, errs)
	}
	plan, _, _ := inside("exec", "--dry-run", "--json", "-", "--memory", "64M", "--pids", "1000", "--", "true")
	for want, there := range map[string]bool{fmt.Sprint(64 << 20): true, `"memory: `: false, `"tasks: the caller's cgroup /` + name: true, `"tasks": 40`: true} {
		if strings.Contains(plan, want) != there {
			t.Errorf("the smaller of both: %q in %s", want, plan)
		}
	}
	const fork = `
import os
n = 0
try:
    while n < 60:
        if os.fork() == 0:
            os.execlp("sleep", "sleep", "1000")
        n += 1
except OSError:
    pass
print(n < 40)`
	if out, errs, _ := inside("exec", "-q", "--", "python3", "-c", fork); out != "True\n" {
		t.Errorf("more tasks than the caller may have: %q %q", out, errs)
	}
	if out, _, _ := s.guard(ann, "exec", "--dry-run", "--", "true"); strings.Contains(out, name) {
		t.Error("another caller has these limits too")
	}
}
