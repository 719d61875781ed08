package outer

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// asked is a witness whose other end the test holds.
func asked(t *testing.T) (s *socket, other int) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(pair[0]); unix.Close(pair[1]) })
	return &socket{fd: pair[0]}, pair[1]
}

func answer(errno, uid, gid uint32) []byte {
	b := binary.NativeEndian.AppendUint32(nil, errno)
	return binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(b, uid), gid)
}

func TestAsk(t *testing.T) {
	s, other := asked(t)
	for _, a := range [][]byte{answer(0, 7, 8), answer(uint32(unix.ESTALE), 0, 0), answer(0, 9, 10)} {
		if _, err := unix.Write(other, a); err != nil {
			t.Fatal(err)
		}
	}
	if uid, gid, err := s.ask(other); uid != 7 || gid != 8 || err != nil {
		t.Error(uid, gid, err)
	}
	if _, _, err := s.ask(other); !errors.Is(err, unix.ESTALE) {
		t.Error(err)
	}
	if uid, _, err := s.ask(other); uid != 9 || err != nil { // an error of a file's is an answer
		t.Error(uid, err)
	}
}

// An answer that comes when nobody waits for it any more is nobody's.
func TestAskLate(t *testing.T) {
	s, other := asked(t)
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 1000}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.ask(other); !errors.Is(err, unix.EAGAIN) || !errors.Is(err, ErrGone) {
		t.Fatal(err)
	}
	if _, err := unix.Write(other, answer(0, uint32(os.Getuid()), 0)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.ask(other); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the late answer was taken: %v", err)
	}
}

// What is no answer is none, and the last one.
func TestAskShort(t *testing.T) {
	for _, a := range [][]byte{{}, answer(0, 0, 0)[:11]} {
		s, other := asked(t)
		if _, err := unix.Write(other, a); err != nil {
			t.Fatal(err)
		}
		if uid, _, err := s.ask(other); !errors.Is(err, ErrGone) {
			t.Errorf("%d bytes: %d, %v", len(a), uid, err)
		}
	}
}

// Who has been killed has said what it has said: of the same file, and of no other.
func TestAskGone(t *testing.T) {
	s, other := asked(t)
	name := filepath.Join(t.TempDir(), "x")
	open := func() *os.File {
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	first := open()
	if _, err := unix.Write(other, answer(0, 7, 8)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.ask(int(first.Fd())); err != nil {
		t.Fatal(err)
	}
	if err := unix.Shutdown(other, unix.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
	if _, ok := fileOf(int(first.Fd())); !ok {
		testenv.Beyond(t, "birth", "the file system of the tests keeps no times of birth, and nothing is remembered")
	}
	again := open()
	if uid, gid, err := s.ask(int(again.Fd())); uid != 7 || gid != 8 || err != nil {
		t.Error(uid, gid, err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if uid, _, err := s.ask(int(open().Fd())); !errors.Is(err, ErrGone) || !errors.Is(err, unix.EPIPE) {
		t.Errorf("another file with the name: %d, %v", uid, err)
	}
}

func TestMemory(t *testing.T) {
	var m memory
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	if _, _, ok := m.of(int(self.Fd())); ok {
		t.Error("nothing was said")
	}
	for i := range uint64(maxMemory) {
		if m == nil {
			m = memory{}
		}
		m[file{ino: i}] = [2]uint32{1, 1}
	}
	m.keep(int(self.Fd()), 7, 8)
	if len(m) != maxMemory {
		t.Errorf("%d files", len(m))
	}
	proc, err := os.Open("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	if _, ok := fileOf(int(proc.Fd())); ok {
		t.Error("a file of procfs has a birth")
	}
}

// The process outside is asked about strangers alone, and ends when it is left.
func TestUse(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[1])
	child := exec.Command("cat") // ends with its stdin
	in, err := child.StdinPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if Foreign(4711, 4711) || Pid() != 0 {
		t.Error("nobody is outside")
	}
	if f, err := Lend(); f != nil || err != nil {
		t.Error(f, err)
	}
	if err := Use(os.NewFile(uintptr(pair[0]), "outside"), child.Process.Pid); err != nil {
		t.Fatal(err)
	}
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	if Foreign(uid, gid) || !Foreign(uid+1, gid) || !Foreign(uid, gid+1) || Pid() != child.Process.Pid {
		t.Error("who is a stranger")
	}
	st := unix.Stat_t{Uid: uid + 1, Gid: gid}
	if _, err := unix.Write(pair[1], answer(0, 0, 9)); err != nil {
		t.Fatal(err)
	}
	if err := Owner(pair[1], &st); err != nil || st.Uid != 0 || st.Gid != 9 {
		t.Errorf("%+v, %v", st, err)
	}
	lent, err := Lend()
	if err != nil {
		t.Fatal(err)
	}
	defer lent.Close()
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	Leave()
	if err := child.Process.Signal(unix.Signal(0)); err == nil {
		if err := unix.Kill(child.Process.Pid, 0); err != unix.ESRCH {
			t.Errorf("it is not reaped: %v", err)
		}
	}
	if Leave(); Foreign(uid+1, gid) || Pid() != 0 {
		t.Error("still asked")
	}
	st.Uid = uid + 1
	if err := Owner(pair[1], &st); err != nil || st.Uid != uid+1 {
		t.Errorf("%+v, %v", st, err)
	}
}
