package landlock

import (
	"strings"
	"testing"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// The table against the kernel's own: include/uapi/linux/landlock.h.
func TestHandledByABI(t *testing.T) {
	for abi, want := range map[int]uint64{
		0: 0, 1: 0x1fff, 2: 0x3fff, 3: 0x7fff, 4: 0x7fff, 5: 0xffff, 6: 0xffff, 7: 0xffff, 8: 0xffff, 9: 0x1ffff, 11: 0x1ffff,
	} {
		if got := Handled(abi); got != want {
			t.Errorf("ABI %d handles %#x, want %#x", abi, got, want)
		}
	}
	for abi, want := range map[int]uint64{5: 0, 6: 3, 11: 3} {
		if got := Scoped(abi); got != want {
			t.Errorf("ABI %d scopes %#x, want %#x", abi, got, want)
		}
	}
}

// No grant but one of a socket may let the command connect to a host's, and none may hold a
// right that the ruleset does not handle.
func TestRightsAreSubsets(t *testing.T) {
	for kind := range kindRights {
		for abi := 1; abi <= 12; abi++ {
			for _, dir := range []bool{true, false} {
				r := Rights(kind, abi, dir)
				if r&^Handled(abi) != 0 {
					t.Errorf("kind %d ABI %d: %#x is not handled", kind, abi, r)
				}
				if want := kind == Socket && abi >= 9; (r&ll.AccessFSResolveUnix != 0) != want || want && r != ll.AccessFSResolveUnix {
					t.Errorf("kind %d ABI %d grants %#x, and RESOLVE_UNIX is for sockets", kind, abi, r)
				}
				if !dir && r&(ll.AccessFSReadDir|ll.AccessFSMakeReg|ll.AccessFSRefer) != 0 {
					t.Errorf("kind %d ABI %d: directory rights on a file: %#x", kind, abi, r)
				}
			}
		}
	}
	if r := Rights(Read, 11, true); r&(ll.AccessFSWriteFile|ll.AccessFSTruncate|ll.AccessFSMakeReg|ll.AccessFSRemoveFile) != 0 {
		t.Errorf("Read grants writing: %#x", r)
	}
	if r := Rights(Proc, 11, true); r&ll.AccessFSExecute != 0 {
		t.Errorf("Proc grants execution: %#x", r)
	}
}

func TestMissingNamesTheKernel(t *testing.T) {
	if got := Missing(11); len(got) != 0 {
		t.Errorf("ABI 11 lacks %q", got)
	}
	got := strings.Join(Missing(2), "; ")
	for _, want := range []string{"truncation (Linux 6.2)", "ioctls of devices (Linux 6.10)", "Linux 6.12", "pathname unix sockets (Linux 7.1)"} {
		if !strings.Contains(got, want) {
			t.Errorf("ABI 2: %q lacks %q", got, want)
		}
	}
}
