package runs

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"
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
		if pid, err := findHolder(strings.NewReader(locks), 0xfd, 0, ino); err != nil || pid != want {
			t.Errorf("%d: %d, %v; want %d", ino, pid, err, want)
		}
	}
}
