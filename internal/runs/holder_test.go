package runs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSupervisor(t *testing.T) {
	s := openState(t)
	d, err := s.Create(NewID(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	reader, err := s.Open(d.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	sup, err := reader.Supervisor()
	if err != nil {
		t.Fatal(err)
	}
	if sup.Pid != os.Getpid() {
		t.Errorf("process %d, want this one, %d", sup.Pid, os.Getpid())
	}
	if err := sup.Signal(0); err != nil {
		t.Error(err)
	}
	if err := errors.Join(sup.Close(), d.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Supervisor(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a run that nobody holds: %v", err)
	}
}

func TestFindHolder(t *testing.T) {
	const locks = `1: FLOCK  ADVISORY  WRITE 101 fd:00:7 0 EOF
2: POSIX  ADVISORY  WRITE 102 fd:00:8 0 EOF
3: FLOCK  ADVISORY  READ  103 fd:00:8 0 EOF
3: -> FLOCK  ADVISORY  WRITE 105 fd:00:8 0 EOF
4: FLOCK  ADVISORY  WRITE 104 fd:00:8 0 EOF
5: FLOCK  ADVISORY  WRITE 0 fd:00:9 0 EOF
6: FLOCK
`
	for ino, want := range map[uint64]int{7: 101, 8: 104, 9: 0, 10: 0} {
		if pid, err := findHolder(strings.NewReader(locks), fmt.Sprintf("fd:00:%d", ino)); err != nil || pid != want {
			t.Errorf("%d: %d, %v; want %d", ino, pid, err, want)
		}
	}
}

// takerVar makes a process of this test one that takes the lock of descriptor 3 and gives it away:
// as a user can who has been shown the directory.
const takerVar = "AGENTGUARD_TEST_TAKER"

// The kernel tells of a lock who has taken it. Who has it now may be another, and the number a third
// one's: nobody is signalled who does not hold it.
func TestSupervisorGoneLockKept(t *testing.T) {
	if os.Getenv(takerVar) != "" {
		if unix.Flock(3, unix.LOCK_EX|unix.LOCK_NB) == nil && unix.Close(3) == nil {
			os.Stdout.WriteString("taken\n")
		}
		io.Copy(io.Discard, os.Stdin)
		return
	}
	s := openState(t)
	d, err := s.Create(NewID(time.Now()))
	if err == nil {
		err = d.Unlock()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), takerVar+"=1"), []*os.File{d.Dir()}
	in, ierr := cmd.StdinPipe()
	out, oerr := cmd.StdoutPipe()
	if err := errors.Join(ierr, oerr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "taken\n" {
		t.Fatal(line, err)
	}
	sup, err := d.Supervisor()
	if err != nil {
		t.Fatal(err)
	}
	defer sup.Close()
	if sup.Pid != cmd.Process.Pid { // what /proc/locks says
		t.Errorf("process %d, want %d", sup.Pid, cmd.Process.Pid)
	}
	if err := sup.Signal(unix.SIGURG); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was signalled: %v", err)
	}
}
