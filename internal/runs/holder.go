package runs

import (
	"bufio"
	"errors"
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
	lock  string // as proc_locks(5) names the file
}

// Supervisor finds the process that has taken the run's lock, by proc_locks(5). It
// is one and the same for as long as the Supervisor is open. A run that nobody
// holds is fs.ErrNotExist.
func (d *RunDir) Supervisor() (*Supervisor, error) {
	lock, err := d.lockName()
	if err != nil {
		return nil, err
	}
	pid, err := d.holder(lock)
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("runs: supervisor of %s: %w", d.id, os.NewSyscallError("pidfd_open", err))
	}
	s := &Supervisor{Pid: pid, pidfd: os.NewFile(uintptr(fd), "pidfd"), lock: lock}
	// The number may have been given out again between the two: who holds the
	// lock now held it all along. (Who has given it away: see Signal.)
	if again, err := d.holder(lock); err != nil || again != pid {
		s.Close()
		return nil, fmt.Errorf("runs: supervisor of %s: %w", d.id, os.ErrNotExist)
	}
	return s, nil
}

// Signal sends a signal to the supervisor, which passes it on to the command. Whoever has the
// directory open for reading, as a user whom it is shown, can take the lock, give it to another process by
// a descriptor, and end: proc_locks(5) then names a number that may be anybody's by now. So
// it is signalled only if it has the lock still. Where we may not see that, we have not the rights of
// the helper, nor a directory that anybody else is shown.
func (s *Supervisor) Signal(sig unix.Signal) error {
	has, err := s.holds()
	switch {
	case errors.Is(err, os.ErrPermission) && !sees():
	case err != nil:
		return fmt.Errorf("runs: process %d: %w", s.Pid, err)
	case !has:
		return fmt.Errorf("runs: process %d has given its lock away: %w", s.Pid, os.ErrNotExist)
	}
	if err := unix.PidfdSendSignal(int(s.pidfd.Fd()), sig, nil, 0); err != nil {
		return fmt.Errorf("runs: signal process %d: %w", s.Pid, err)
	}
	return nil
}

// holds reports whether a descriptor of the process has the lock (proc_pid_fdinfo(5)). The number
// means another process only where the pidfd has none any more.
func (s *Supervisor) holds() (bool, error) {
	dir := "/proc/" + strconv.Itoa(s.Pid) + "/fdinfo/"
	list, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, e := range list {
		b, err := os.ReadFile(dir + e.Name())
		if errors.Is(err, os.ErrNotExist) { // it was closed
			continue
		}
		if err != nil {
			return false, err
		}
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(line, "lock:"); ok && taker(rest, s.lock) == s.Pid {
				return true, nil
			}
		}
	}
	return false, nil
}

// sees reports whether we may look at every process (capabilities(7)).
func sees() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) != nil || data[0].Effective&(1<<unix.CAP_SYS_PTRACE) != 0
}

// Close lets go of the process.
func (s *Supervisor) Close() error { return s.pidfd.Close() }

// holder returns the process that has taken the exclusive lock of the run.
func (d *RunDir) holder(lock string) (int, error) {
	f, err := os.Open("/proc/locks")
	if err != nil {
		return 0, fmt.Errorf("runs: supervisor of %s: %w", d.id, err)
	}
	defer f.Close()
	pid, err := findHolder(f, lock)
	if err == nil && pid == 0 {
		err = os.ErrNotExist
	}
	if err != nil {
		return 0, fmt.Errorf("runs: supervisor of %s: %w", d.id, err)
	}
	return pid, nil
}

// lockName is what proc_locks(5) calls the directory: by the number of its file system, which is not
// what stat(2) says on btrfs, where each subvolume has one. The mount table has the former.
func (d *RunDir) lockName() (string, error) {
	var stx unix.Statx_t
	if err := unix.Statx(int(d.dir.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_MNT_ID, &stx); err != nil {
		return "", os.NewSyscallError("statx", err)
	}
	table, err := mountinfo.Read()
	if err != nil {
		return "", err
	}
	major, minor := stx.Dev_major, stx.Dev_minor // the mount may be another namespace's, as a helper's
	for m := range mountinfo.All(table) {
		if m.ID == stx.Mnt_id {
			major, minor = m.Major, m.Minor
		}
	}
	return fmt.Sprintf("%02x:%02x:%d", major, minor, stx.Ino), nil
}

// findHolder reads proc_locks(5) for an exclusive flock(2); 0 when there is
// none, or its holder has no number in this pid namespace.
func findHolder(r io.Reader, lock string) (int, error) {
	s := bufio.NewScanner(r)
	for s.Scan() {
		if pid := taker(s.Text(), lock); pid > 0 {
			return pid, nil
		}
	}
	return 0, s.Err()
}

// taker is who has taken an exclusive flock(2) that a line tells of; 0: it is none of that file.
func taker(line, lock string) int {
	f := strings.Fields(line)
	if len(f) < 6 || f[1] != "FLOCK" || f[3] != "WRITE" || f[5] != lock {
		return 0
	}
	pid, err := strconv.Atoi(f[4])
	if err != nil {
		return 0
	}
	return pid
}
