package runs

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/mountinfo"
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
	pid, err := d.findHolder()
	if err == nil && pid == 0 {
		err = os.ErrNotExist
	}
	if err != nil {
		return 0, fmt.Errorf("runs: supervisor of %s: %w", d.id, err)
	}
	return pid, nil
}

func (d *RunDir) findHolder() (int, error) {
	major, minor, ino, err := d.lockID()
	if err != nil {
		return 0, err
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return findHolder(f, major, minor, ino)
}

// lockID is what proc_locks(5) calls the directory: by the number of its file system, which is not
// what stat(2) says on btrfs, where each subvolume has one. The mount table has the former.
func (d *RunDir) lockID() (major, minor uint32, ino uint64, err error) {
	var stx unix.Statx_t
	if err := unix.Statx(int(d.dir.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_MNT_ID, &stx); err != nil {
		return 0, 0, 0, os.NewSyscallError("statx", err)
	}
	table, err := mountinfo.Read()
	if err != nil {
		return 0, 0, 0, err
	}
	for m := range mountinfo.All(table) {
		if m.ID == stx.Mnt_id {
			return m.Major, m.Minor, stx.Ino, nil
		}
	}
	return stx.Dev_major, stx.Dev_minor, stx.Ino, nil // the mount of another namespace, as a helper's may be
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
