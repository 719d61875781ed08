package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/vault"
	"github.com/agentguard/agentguard/policy"
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

// Rates are bounds of CPU time and of devices, which no policy has words for.
type Rates = cgroup.Rates

// BoundByCgroup lowers memory and tasks to what bounds a caller's own processes, where the
// run's cgroup is not below the caller's, and returns the bounds of CPU time and of devices
// (v2 only), for [Config].Rates. membership is the caller's /proc/PID/cgroup.
// Each run has the whole of it: how much of it others use is not known.
func BoundByCgroup(p *policy.Policy, membership []byte) (Rates, error) {
	layout, err := cgroup.Detect()
	if err != nil {
		return Rates{}, err
	}
	memory, tasks, err := layout.Above(membership)
	if err != nil {
		return Rates{}, fmt.Errorf("limits of the caller's cgroup: %w", err)
	}
	for _, l := range []struct {
		of *policy.Limit
		to cgroup.Bound
	}{{&p.MaxMemory, memory}, {&p.MaxTasks, tasks}} {
		if l.to.N > 0 && (l.of.Unlimited || l.of.N > l.to.N) {
			*l.of = policy.Limit{N: l.to.N, Source: policy.Source{Caller: "cgroup " + l.to.At}}
		}
	}
	rates, err := layout.RatesAbove(membership)
	if err != nil {
		return rates, fmt.Errorf("rates of the caller's cgroup: %w", err)
	}
	return rates, nil
}

// Shown is the state directory of a user, for that user to read.
type Shown struct {
	Dir  *os.File // a mount of it that is attached nowhere and stays so, read-only, in which root's files are the user's
	Path string   // where it lies

	*vault.Snapshot
}

// ShowRecords opens the records of a user, which are kept apart, for a reader: that user
// or an auditor. Files stay root's, mode 0600: only the mount shows another owner, and
// nothing can be written through it. Mounts with mapped ids take Linux 5.12, on tmpfs 6.3.
//
// Where there are no mapped ids (user.max_user_namespaces=0, or a file system without)
// the files are let be read by whoever has a descriptor of their directory, which nobody
// gets from anywhere else.
func ShowRecords(of Caller, reader int) (*Shown, error) {
	path, err := of.StateDir("")
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(path); reader != of.UID && errors.Is(err, os.ErrNotExist) {
		return nil, &Refusal{What: "user " + strconv.Itoa(of.UID) + " has no records"}
	}
	s, v, err := openBoth(of)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	defer v.Close()
	dir, err := showTo(s, reader)
	if err == nil {
		dir, err = ofNoNamespace(dir)
	}
	if err != nil {
		return nil, &Refusal{What: "the records cannot be shown to user " + strconv.Itoa(reader), Err: err, Remedy: "root can read them in " + s.Path()}
	}
	snap, err := v.Snapshot()
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &Shown{dir, s.Path(), snap}, nil
}

// showTo returns a mount of a state directory that a user can read.
func showTo(s *runs.State, reader int) (*os.File, error) {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC}
	dir, err := showMapped(s, attr, reader)
	if err == nil {
		return dir, nil
	}
	if rerr := s.LetRead(); rerr != nil {
		return nil, errors.Join(fmt.Errorf("a mount with mapped ids (sysctl user.max_user_namespaces must not be 0): %w", err), rerr)
	}
	return cloneMount(s.Dir(), &attr)
}

func showMapped(s *runs.State, attr unix.MountAttr, reader int) (*os.File, error) {
	ns, err := initproc.NewUserNS(idMap(reader), filepath.Join(runtimeDir(), "init"))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
	attr.Userns_fd = uint64(ns.Fd())
	return cloneMount(s.Dir(), &attr)
}

// ofNoNamespace takes a detached mount out of the mount namespace that open_tree(2) has made for it
// alone, by closing what was made, and returns another descriptor of it. In that namespace
// anybody with CAP_SYS_ADMIN in a user namespace, which every user can have, could take its flags
// away or attach it (mount_setattr(2), move_mount(2)); of a mount in none the kernel refuses both.
func ofNoNamespace(tree *os.File) (*os.File, error) {
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(tree.Fd())), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "open", Path: tree.Name(), Err: err}, tree.Close())
	}
	alone := os.NewFile(uintptr(fd), tree.Name())
	if err := tree.Close(); err != nil {
		return nil, errors.Join(err, alone.Close())
	}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if err == unix.EINVAL {
		return alone, nil
	}
	return nil, errors.Join(fmt.Errorf("the mount of the records can still be changed (mount_setattr: %v)", err), alone.Close())
}

// noUserNS reports whether this host allows no user namespaces at all.
func noUserNS() bool {
	b, err := os.ReadFile("/proc/sys/user/max_user_namespaces") // namespaces(7)
	return err == nil && strings.TrimSpace(string(b)) == "0"
}

// RecordUsers are the users whose records are kept apart.
func RecordUsers() ([]int, error) {
	top, err := runs.DefaultPath(0, os.Getenv)
	if err != nil {
		return nil, err
	}
	list, err := os.ReadDir(filepath.Join(top, "users"))
	if err != nil {
		return nil, ignoreMissing(err)
	}
	var out []int
	for _, e := range list {
		if uid, err := strconv.Atoi(e.Name()); err == nil && uid > 0 {
			out = append(out, uid)
		}
	}
	slices.Sort(out)
	return out, nil
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
