package bpf

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Release drops all sets of programs that are pinned at pinDir, so that the
// kernel detaches and frees them; the next [Open] loads them again. idle is asked
// first, while no run can begin: an error of it is returned, and nothing is
// dropped. A run that begins right after finds its programs gone and is refused.
func Release(pinDir string, idle func() error) error {
	if _, err := os.Lstat(pinDir); errors.Is(err, os.ErrNotExist) {
		return idle()
	}
	unlock, err := lockFile(lockPath(pinDir, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if err := idle(); err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(pinDir, &fs); err != nil {
		return &os.PathError{Op: "statfs", Path: pinDir, Err: err}
	}
	if fs.Type != unix.BPF_FS_MAGIC {
		return nil
	}
	// Unlinked first: a copy of the mount elsewhere would keep the pins.
	sets, err := os.ReadDir(pinDir)
	if err != nil {
		return err
	}
	var errs []error
	for _, set := range sets {
		if set.IsDir() {
			errs = append(errs, removeSet(pinDir, set.Name()))
		}
	}
	if err := unix.Unmount(pinDir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		errs = append(errs, fmt.Errorf("umount %s: %w", pinDir, err))
	}
	return errors.Join(errs...)
}
