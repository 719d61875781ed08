package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/vault"
	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// inherited are the limits that a command has from whoever started it, by the kernel's
// words for them. RLIMIT_CORE, RTPRIO and NICE are not among them: every run has the same.
var inherited = []struct {
	words, name string
	resource    int
}{
	{"Max cpu time", "RLIMIT_CPU", unix.RLIMIT_CPU},
	{"Max file size", "RLIMIT_FSIZE", unix.RLIMIT_FSIZE},
	{"Max data size", "RLIMIT_DATA", unix.RLIMIT_DATA},
	{"Max address space", "RLIMIT_AS", unix.RLIMIT_AS},
	{"Max processes", "RLIMIT_NPROC", unix.RLIMIT_NPROC},
	{"Max open files", "RLIMIT_NOFILE", unix.RLIMIT_NOFILE},
	{"Max locked memory", "RLIMIT_MEMLOCK", unix.RLIMIT_MEMLOCK},
	{"Max pending signals", "RLIMIT_SIGPENDING", unix.RLIMIT_SIGPENDING},
	{"Max msgqueue size", "RLIMIT_MSGQUEUE", unix.RLIMIT_MSGQUEUE},
}

// Inherited are the limits of a caller, by the words of proc_pid_limits(5), as those of
// a command: the hard ones that bound anything.
func Inherited(hard map[string]uint64) []Rlimit {
	var out []Rlimit
	for _, l := range inherited {
		if n, ok := hard[l.words]; ok && n != unix.RLIM_INFINITY {
			out = append(out, Rlimit{l.name, n, l.resource})
		}
	}
	return out
}

// Shown is the state directory of a user, for that user to read.
type Shown struct {
	Dir  *os.File // a mount of it that is attached nowhere, read-only, in which root's files are the user's
	Path string   // where it lies

	*vault.Snapshot
}

// ShowRecords opens the records of a caller that they are kept apart of. Files stay
// root's, mode 0600: only the mount shows another owner, and nothing can be written
// through it. Mounts with mapped ids take Linux 5.12, on tmpfs 6.3.
func ShowRecords(c Caller) (*Shown, error) {
	s, v, err := openBoth(c)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	defer v.Close()
	ns, err := initproc.NewUserNS(idMap(c.UID), filepath.Join(runtimeDir(), "init"))
	if err != nil {
		return nil, fmt.Errorf("user namespace for a mount of the records: %w", err)
	}
	defer ns.Close()
	dir, err := cloneMount(s.Dir(), &unix.MountAttr{
		Attr_set:  unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_IDMAP,
		Userns_fd: uint64(ns.Fd()),
	})
	if err != nil {
		return nil, &Refusal{What: "the records cannot be shown to user " + strconv.Itoa(c.UID), Err: err, Remedy: "root can read them in " + s.Path()}
	}
	snap, err := v.Snapshot()
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &Shown{dir, s.Path(), snap}, nil
}

func openBoth(c Caller) (*runs.State, *vault.Vault, error) {
	path, err := c.StateDir("")
	if err != nil {
		return nil, nil, err
	}
	s, err := runs.OpenState(path, os.Getuid())
	if err != nil {
		return nil, nil, err
	}
	v, err := OpenVault(c, s)
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, v, nil
}
