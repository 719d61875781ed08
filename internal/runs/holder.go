package runs

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Supervisor is the process that holds a live run.
type Supervisor struct {
	Pid   int
	pidfd *os.File
}

// Supervisor finds the process that holds the run's lock, by proc_locks(5). It
// is one and the same for as long as the Supervisor is open. A run that nobody
// holds is fs.ErrNotExist.
func (d *RunDir) Supervisor() (*Supervisor, error) {
	pid, err := d.holder()
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("runs: supervisor of %s: %w", d.id, os.NewSyscallError("pidfd_open", err))
	}
	s := &Supervisor{Pid: pid, pidfd: os.NewFile(uintptr(fd), "pidfd")}
	// The number may have been given out again between the two: who holds the
	// lock now held it all along.
	if again, err := d.holder(); err != nil || again != pid {
		s.Close()
		return nil, fmt.Errorf("runs: supervisor of %s: %w", d.id, os.ErrNotExist)
	}
	return s, nil
}

// Signal sends a signal to the supervisor, which passes it on to the command.
func (s *Supervisor) Signal(sig unix.Signal) error {
	if err := unix.PidfdSendSignal(int(s.pidfd.Fd()), sig, nil, 0); err != nil {
		return fmt.Errorf("runs: signal process %d: %w", s.Pid, err)
	}
	return nil
}

// Close lets go of the process.
func (s *Supervisor) Close() error { return s.pidfd.Close() }

// holder returns the process that holds the exclusive lock of the run.
func (d *RunDir) holder() (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(d.dir.Fd()), &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		return 0, fmt.Errorf("runs: supervisor of %s: %w", d.id, err)
	}
	defer f.Close()
	pid, err := findHolder(f, unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	if err == nil && pid == 0 {
		err = os.ErrNotExist
	}
	if err != nil {
		return 0, fmt.Errorf("runs: supervisor of %s: %w", d.id, err)
	}
	return pid, nil
}

// findHolder reads proc_locks(5) for an exclusive flock(2); 0 when there is
// none, or its holder has no number in this pid namespace.
func findHolder(r io.Reader, major, minor uint32, ino uint64) (int, error) {
	want := fmt.Sprintf("%02x:%02x:%d", major, minor, ino)
	s := bufio.NewScanner(r)
	for s.Scan() {
		f := strings.Fields(s.Text())
		if len(f) < 6 || f[1] != "FLOCK" || f[3] != "WRITE" || f[5] != want {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 {
			return pid, nil
		}
	}
	return 0, s.Err()
}
