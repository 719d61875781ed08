package helper

import (
	"os"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lostthread"
	"github.com/agentguard/agentguard/internal/testenv"
)

// All groups of a caller are told, however many there are.
func TestPeerGroups(t *testing.T) {
	testenv.Root(t)
	for _, n := range []int{0, 1, 128, 129, 5000, 65536} { // NGROUPS_MAX is the last
		want := make([]int, n)
		gids := make([]uint32, n+1)
		for i := range want {
			want[i] = 2*i + 1
			gids[i] = uint32(want[i])
		}
		var got []int
		err := lostthread.Run(func() error {
			if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(n), uintptr(unsafe.Pointer(&gids[0])), 0); errno != 0 {
				return errno
			}
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(pair[0])
			defer unix.Close(pair[1])
			got, err = peerGroups(pair[0])
			return err
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%d groups: %d, %v", n, len(got), err)
		}
	}
}

// Where the kernel knows the peer's process and does not hand it out, the process that has
// the peer's number is not taken for it: here nobody has connected, and the number is ours.
func TestPeerByNumber(t *testing.T) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	_, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	byNumber := err == unix.ENOPROTOOPT // before Linux 6.5 there is nothing better
	p := &Peer{PID: os.Getpid()}
	defer p.Close()
	if err := p.hold(fd); (err == nil) != byNumber {
		t.Errorf("%v", err)
	}
}
