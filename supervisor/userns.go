package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// RuntimeDir holds what outlives a run on purpose: pinned programs, locks and
// the user namespaces of idmapped mounts. Root's, mode 0755; nothing in it is
// ever granted to a run.
const RuntimeDir = "/run/agentguard"

// uidSlot is a uid of the run's own, held by a lock while the run lives.
type uidSlot struct {
	lock *os.File
	n    int
}

func (s *uidSlot) uid() int { return ownUIDBase + s.n }

// takeUID locks the first free uid of the range. Using the lowest first keeps
// the number of kept user namespaces at the greatest number of runs at once.
func takeUID(dir string) (*uidSlot, error) {
	dir = filepath.Join(dir, "uid")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for n := range ownUIDs {
		f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(n)), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return &uidSlot{f, n}, nil
		}
		f.Close()
	}
	return nil, &Refusal{What: fmt.Sprintf("all %d user ids for runs are in use", ownUIDs), Remedy: "wait for other runs to end"}
}

func (s *uidSlot) Close() error { return s.lock.Close() }

// userns returns the user namespace whose id map shows host uid 0 as the
// slot's uid. It is made once per slot and kept by a bind mount: making one
// takes a process, opening a kept one does not.
func (s *uidSlot) userns(dir string) (*os.File, error) {
	dir = filepath.Join(dir, "userns")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	pin := filepath.Join(dir, strconv.Itoa(s.n))
	if f, err := openNS(pin); err == nil {
		return f, nil
	}
	f, err := initproc.NewUserNS(idMap(s.uid()), filepath.Join(filepath.Dir(dir), "init"))
	if err != nil {
		return nil, fmt.Errorf("user namespace for idmapped mounts: %w", err)
	}
	keep, err := os.OpenFile(pin, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		err = errors.Join(keep.Close(), unix.Mount(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), pin, "", unix.MS_BIND, ""))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("keeping a user namespace: %w", err), f.Close())
	}
	return f, nil
}

// openNS opens a pinned namespace, and nothing else that may lie there.
func openNS(pin string) (*os.File, error) {
	f, err := os.OpenFile(pin, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWUSER {
		f.Close()
		return nil, fmt.Errorf("%s is no user namespace (%v)", pin, err)
	}
	return f, nil
}

// idMap maps every id to itself, but 0 to uid. All ids must be mapped: a file
// whose owner is not could be neither removed nor copied up (EOVERFLOW).
func idMap(uid int) []initproc.IDMap {
	const last = 1<<32 - 2 // (uid_t)-1 is no id
	return []initproc.IDMap{
		{Inside: 0, Outside: uid, Size: 1},
		{Inside: 1, Outside: 1, Size: uid - 1},
		{Inside: uid + 1, Outside: uid + 1, Size: last - uid},
	}
}
