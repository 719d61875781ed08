package main

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// On a /proc with hidepid a process that is not dumpable is shown to nobody who lacks CAP_SYS_PTRACE over it. Where a limit counts what
// it takes, it ends the run; a run in which nobody hides is as everywhere.
func TestLandlockHidePID(t *testing.T) {
	c := corner(t, "filter")
	behind := func(args ...string) (string, string, int) {
		const script = `mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid "$0" --regid "$1" --clear-groups "${@:2}"`
		inner := c.as(append([]string{agentguard(), "exec", "--allow-gap", "landlock", "--mode", "ro", "--memory", "256M"}, args...)...)
		cmd := exec.Command("bash", append([]string{"-c", script, strconv.Itoa(c.uid()), strconv.Itoa(lonerGID), inner.Path}, inner.Args[1:]...)...)
		cmd.Dir, cmd.Env = inner.Dir, inner.Env
		cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
		return c.finish(cmd)
	}
	const hide = `import ctypes, os, time
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0
print("hidden", flush=True)
fd = os.memfd_create("x")
for i in range(300): os.write(fd, bytes(1000000))
time.sleep(600)`
	out, errs, status := behind("--", "/usr/bin/python3", "-c", hide)
	if out != "hidden\n" || status != 137 || !strings.Contains(errs, "hidepid") || !strings.Contains(errs, "--memory") {
		t.Errorf("%d %q %q", status, out, errs)
	}
	if out, errs, status := behind("--", "sh", "-c", "sleep 0.2; echo done"); out != "done\n" || status != 0 {
		t.Errorf("%d %q %q", status, out, errs)
	}
	if out, errs, _ := behind("--dry-run", "--", "true"); !strings.Contains(out, "/proc is mounted with hidepid=") {
		t.Errorf("%q %q", out, errs)
	}
}
