package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lostthread"
	"github.com/agentguard/agentguard/landlock"
	initproc "github.com/agentguard/agentguard/supervisor/init"
)

func (x *examination) files() {
	x.try("files", "mount view", "fsopen, open_tree, mount_setattr, move_mount and pivot_root work",
		x.asRoot(tryMounts), cellMissing, mountRemedy)
	x.landlock()
	x.mappedIDs()
	x.workspace()
}

const mountRemedy = "run agentguard where mounts can be made: outside of the container, or one with CAP_SYS_ADMIN and without a seccomp or AppArmor profile " +
	"that refuses them (docker: --cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined)"

// tryMounts makes a small mount view on detached file systems and enters it.
func tryMounts() error {
	return inPrivateMounts(func() error {
		root, err := newTmpfs("doctor", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, "mode=0755", "size=64k")
		if err != nil {
			return err
		}
		defer root.Close()
		if err := unix.MoveMount(int(root.Fd()), "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("move_mount: %w", err)
		}
		place, err := mkdirAt(root, "place", 0o755)
		if err != nil {
			return err
		}
		defer place.Close()
		tree, err := cloneTree(root, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		if err != nil {
			return err
		}
		defer tree.Close()
		if err := unix.MoveMount(int(tree.Fd()), "", int(place.Fd()), "", mountFlagsEmpty); err != nil {
			return fmt.Errorf("move_mount into a mount: %w", err)
		}
		return pivotInto(root)
	})
}

// pivotInto makes dir the root of the calling thread's mount namespace.
func pivotInto(dir *os.File) error {
	if err := unix.Fchdir(int(dir.Fd())); err != nil {
		return fmt.Errorf("fchdir: %w", err)
	}
	err := unix.PivotRoot(".", ".")
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("pivot_root: %w (the root of this system is an initramfs, from which nothing can pivot)", err)
	}
	return os.NewSyscallError("pivot_root", err)
}

func (x *examination) landlock() {
	const layer = "Landlock"
	missing := landlock.Missing(x.abi)
	lacks := "; it lacks nothing that this version uses"
	if len(missing) > 0 {
		lacks = "; not guarded by it: " + strings.Join(missing, ", ")
	}
	found := fmt.Sprintf("ABI %d, %s%s", x.abi, errataText(landlockErrata()), lacks)
	switch {
	case x.abi == 0:
		x.say("files", layer, cellThin, oneLine(x.host.Info.LandlockError)+": the mount view is the only layer",
			"a kernel with CONFIG_SECURITY_LANDLOCK=y, and landlock in lsm= on its command line")
	case x.Inside.domains >= maxDomains:
		x.say("files", layer, cellMissing, fmt.Sprintf("this process is in %d nested Landlock domains, and the kernel allows no more", x.Inside.domains),
			"start agentguard outside of the other sandboxes")
	case x.abi < 5: // the last one before unix sockets that adds rights on files
		x.say("files", layer, cellThin, found, "a kernel from 6.10 on")
	default:
		x.say("files", layer, cellOK, found, "")
	}
}

// landlockErrata is the set of fixed errata: bit n-1 for erratum n (6.15, and
// backports; Documentation/userspace-api/landlock.rst). 0 where it cannot be asked.
func landlockErrata() int {
	n, _, errno := unix.Syscall(landlock.SysCreateRuleset, 0, 0, unix.LANDLOCK_CREATE_RULESET_ERRATA)
	if errno != 0 {
		return 0
	}
	return int(n)
}

func errataText(bits int) string {
	var fixed []string
	for n := range 31 {
		if bits&(1<<n) != 0 {
			fixed = append(fixed, fmt.Sprint(n+1))
		}
	}
	if len(fixed) == 0 {
		return "no erratum is known to be fixed"
	}
	return "errata fixed: " + strings.Join(fixed, ", ")
}

// maxDomains is LANDLOCK_MAX_NUM_LAYERS (security/landlock/limits.h).
const maxDomains = 16

// landlockDomains counts the Landlock domains that this process is in. No file
// tells: a thread that is lost for it puts on more until the kernel has enough.
func landlockDomains() (n int, err error) {
	err = lostthread.Run(func() error {
		if err := noNewPrivs(); err != nil {
			return err
		}
		n, err = countDomains()
		return err
	})
	return n, err
}

// countDomains counts those of the calling thread, which is of no use afterwards.
func countDomains() (int, error) {
	rules, err := landlock.NewRuleset(1, nil)
	if err != nil {
		return 0, err
	}
	defer rules.Close()
	for n := maxDomains; n >= 0; n-- {
		switch _, _, errno := unix.Syscall(landlock.SysRestrictSelf, rules.Fd(), 0, 0); errno {
		case 0:
		case unix.E2BIG:
			return n, nil
		default:
			return 0, errno
		}
	}
	return 0, errors.New("the kernel nests more Landlock domains than are known")
}

// mappedIDs shows whether a directory of root's could be shown writable to a
// run's own user, here in the current directory.
func (x *examination) mappedIDs() {
	const remedy = "--mode ro (the default), or give the directory to a user (chown)"
	var ns *os.File
	err := x.asRoot(func() (err error) {
		ns, err = initproc.NewUserNS(idMap(ownUIDBase), "")
		return err
	})
	if err != nil {
		err = fmt.Errorf("no user namespace can be made: %w", err)
		x.try("files", "mapped ids", "", err, cellThin, userNSRemedy(err)+"; until then "+remedy)
		return
	}
	defer ns.Close()
	dir, err := os.OpenFile(".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		x.say("files", "mapped ids", cellUnknown, oneLine("the current directory: "+err.Error()), "start doctor in the workspace")
		return
	}
	defer dir.Close()
	tree, err := cloneTree(dir, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())})
	kind := fileSystemOf(dir)
	if err == nil {
		tree.Close()
	} else {
		err = fmt.Errorf("%s, which the current directory is on, cannot be shown with mapped ids: %w", kind, err)
	}
	x.try("files", "mapped ids", "user namespaces work, and "+kind+" of the current directory takes them: --mode rw works where root owns it",
		err, cellThin, "for a workspace of root's here: "+remedy+", or a file system with idmapped mounts (ext4, xfs, btrfs, tmpfs)")
}

func userNSRemedy(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return "sysctl -w user.max_user_namespaces=8192"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return "a kernel with CONFIG_USER_NS=y"
	case errors.Is(err, unix.EACCES):
		return "sysctl -w vm.memfd_noexec=0"
	}
	return "lift what forbids user namespaces to root (container profile, LSM)"
}

// fileSystemOf names the type of the file system that dir is on, by the mount's
// id (statx STATX_MNT_ID, 5.8).
func fileSystemOf(dir *os.File) string {
	var st unix.Statx_t
	if err := unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err == nil && st.Mask&unix.STATX_MNT_ID != 0 {
		for _, m := range readMounts() {
			if m.ID == st.Mnt_id {
				return m.Kind
			}
		}
	}
	return "the file system"
}
