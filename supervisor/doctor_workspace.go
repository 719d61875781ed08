package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/loopfs"
	"github.com/agentguard/agentguard/internal/overlay"
	"github.com/agentguard/agentguard/internal/runs"
)

// workspace shows whether the current directory could be staged, in memory and on disk.
func (x *examination) workspace() {
	kind := "the file system"
	dir, err := os.OpenFile(".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer dir.Close()
		kind = fileSystemOf(dir)
		err = x.asRoot(func() error { return tryOverlay(dir) })
	}
	x.try("files", "overlay", kind+" of the current directory can be shown copy-on-write", err, cellMissing,
		"modprobe overlay, or CONFIG_OVERLAY_FS; a workspace on another file system; or --mode ro or rw")
	size, err := int64(0), errRoot
	if x.root {
		size, err = tryDisk()
	}
	x.try("files", "upper on disk", fmt.Sprintf("ext4 on a loop device, beside the records: room for %d MiB with --upper disk", size>>20), err, cellThin,
		"e2fsprogs (mke2fs), the modules loop and ext4, and records on a disk (--state DIR); until then --upper ram, what auto takes")
}

// tryOverlay mounts an overlay whose lower is dir, as a run does, where nobody sees it.
func tryOverlay(dir *os.File) error {
	lower, err := cloneMount(dir, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_PRIVATE})
	if err != nil {
		return err
	}
	defer lower.Close()
	return inPrivateMounts(func() error {
		root, err := newTmpfs("doctor", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, "mode=0755", "size=64k")
		if err != nil {
			return err
		}
		defer root.Close()
		if err := unix.MoveMount(int(root.Fd()), "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("move_mount: %w", err)
		}
		for _, name := range []string{"upper", "work", "lower"} {
			place, err := mkdirAt(root, name, 0o755)
			if err != nil {
				return err
			}
			defer place.Close()
			if name != "lower" {
				continue
			}
			if err := unix.MoveMount(int(lower.Fd()), "", int(place.Fd()), "", mountFlagsEmpty); err != nil {
				return fmt.Errorf("move_mount: %w", err)
			}
		}
		at := "/proc/self/fd/" + strconv.Itoa(int(root.Fd()))
		merged, err := mountOverlay(overlay.Layers{Lower: at + "/lower", Upper: at + "/upper", Work: at + "/work"})
		if err != nil {
			return err
		}
		return merged.Close()
	})
}

// tryDisk makes a small file system where records are kept, or will be, and says
// how large one could be, in bytes.
func tryDisk() (free int64, err error) {
	at, err := runs.DefaultPath(os.Getuid(), os.Getenv)
	if err != nil {
		return 0, err
	}
	return tryDiskAt(at)
}

func tryDiskAt(at string) (free int64, err error) {
	for !exists(at) {
		at = filepath.Dir(at)
	}
	dir, err := os.Open(at)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	free, missing := loopfs.Look(dir)
	if missing != "" {
		return 0, errors.New(missing)
	}
	mount, err := loopfs.Make(dir, 1<<20, -1)
	if err != nil {
		return 0, err
	}
	for room := free; loopfs.Size(free) > room; {
		free -= free / 64
	}
	return free, mount.Close()
}
