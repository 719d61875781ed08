package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/cgroup"
)

// Release lets go of what is kept on this host between runs so that the next one
// starts faster: the pinned programs, the parent cgroups of all builds, the user
// namespaces of idmapped mounts, the digests of system files. What dead
// supervisors left goes as well. Records stay. While a run is live, nothing is
// released. Locks stay: a file that is made anew is another lock.
func Release() error {
	if os.Geteuid() != 0 {
		return &Refusal{What: "what is kept between runs is root's own", Remedy: "call as root"}
	}
	return releaseHost(runtimeDir(), cgroup.DefaultParent+"-")
}

// settleTime is how long a run may take to give back what it held after its caller has the
// answer (Config.Sealed): who sweeps right after it does not mean that run.
const settleTime = time.Second

func releaseHost(dir, prefix string) error {
	for end := time.Now().Add(settleTime); idle(dir) != nil && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if err := bpf.Release(filepath.Join(dir, "bpf"), func() error { return idle(dir) }); err != nil {
		return err
	}
	return errors.Join(releaseCgroups(dir, prefix), releasePins(filepath.Join(dir, "userns")), os.RemoveAll(filepath.Join(dir, "code")))
}

// idle is an error while a run is live. A reserve is none: it is ended with its leaf.
func idle(dir string) error {
	locks, err := os.ReadDir(filepath.Dir(lockPath(dir, "x")))
	if err != nil {
		return ignoreMissing(err)
	}
	for _, l := range locks {
		if busy(dir, l.Name()) {
			return &Refusal{What: "run " + l.Name() + " is live", Remedy: "wait for it, or end it: agentguard runs kill " + l.Name()}
		}
	}
	return nil
}

func busy(dir, id string) bool { return alive(dir, id) && !inReserve(dir, id) }

func releaseCgroups(dir, prefix string) error {
	layout, err := cgroup.Detect()
	if err != nil || layout.Unified == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	ids, err := layout.Release(ctx, prefix, func(id string) bool { return busy(dir, id) }, func(id string) bool { return inReserve(dir, id) })
	errs := []error{err}
	for _, id := range ids {
		errs = append(errs, ignoreMissing(bury(dir, id, "")))
	}
	return errors.Join(errs...)
}

// releasePins lets go of namespaces that bind mounts keep.
func releasePins(dir string) error {
	pins, err := os.ReadDir(dir)
	if err != nil {
		return ignoreMissing(err)
	}
	var errs []error
	for _, p := range pins {
		pin := filepath.Join(dir, p.Name())
		// EINVAL: not a mount; its maker was killed.
		if err := unix.Unmount(pin, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL {
			errs = append(errs, fmt.Errorf("umount %s: %w", pin, err))
			continue
		}
		errs = append(errs, ignoreMissing(os.Remove(pin)))
	}
	return errors.Join(errs...)
}
