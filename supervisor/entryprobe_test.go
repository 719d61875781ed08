package supervisor

import (
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// Every call of the entry that can fail is named with its errno, and there is always something to do.
func TestUserNSFailure(t *testing.T) {
	calls := entryCalls(5, 6).Steps
	for step, want := range map[int]string{0: "unshare(CLONE_NEWUSER|CLONE_NEWNS)", 4: "write(0 0 1) to uid_map", len(calls) - 1: "PR_CAP_AMBIENT_RAISE", len(calls): "not Enter's", initproc.NoOutside: "could not be made"} {
		for _, errno := range []syscall.Errno{unix.EPERM, unix.ENOSPC, unix.EINVAL, unix.EACCES} {
			u := userNSFailure(step, errno)
			r := u.Refusal()
			if u.OK || !strings.Contains(u.Reason, want) || r.Remedy == "" || !strings.Contains(r.What, "user namespace") {
				t.Errorf("step %d, %v: %+v", step, errno, u)
			}
		}
	}
}

// A profile that confines us is what has to change, whatever AppArmor's setting for others says. Ubuntu's own for
// agentguard, which only names it, confines nothing.
func TestUserNSConfined(t *testing.T) {
	for label, want := range map[string]bool{
		"": false, "unconfined": false, "agentguard (unconfined)": false, "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023": false,
		"ci-job (enforce)": true, "user_u:user_r:user_t:s0": true,
	} {
		u := UserNS{Remedy: "another"}
		if got := u.confinedAs(label); got != want || got != strings.HasSuffix(u.Setting, " as "+label) || got == (u.Remedy == "another") {
			t.Errorf("%q: %v, %+v", label, got, u)
		}
	}
}

// A whole /proc has nothing mounted on it but on directories that are always empty.
func TestHiddenProc(t *testing.T) {
	const (
		root   = "20 1 0:1 / / rw - ext4 /dev/x rw\n"
		proc   = "21 20 0:2 / /proc rw,nosuid - proc proc rw\n"
		binfmt = "22 21 0:3 / /proc/sys/fs/binfmt_misc rw - autofs a rw\n"
		kcore  = "23 21 0:4 /null /proc/kcore rw - devtmpfs d rw\n"
		second = "24 20 0:2 / /mnt/my\\040proc rw - proc proc rw\n"
		part   = "25 20 0:2 /sys /part rw - proc proc rw\n"
		ro     = "21 20 0:2 / /proc ro,nosuid - proc proc ro\n"
	)
	for table, want := range map[string]string{
		root + proc: "", root + proc + binfmt: "", root + proc + kcore: "/proc/kcore", root + proc + kcore + second: "",
		root: "no /proc", root + part: "no /proc", root + ro: "read-only", root + proc + binfmt + kcore: "/proc/kcore",
	} {
		if got := hiddenProc([]byte(table)); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", table, got, want)
		}
	}
}
