//go:build linux && amd64

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is one call of mount(2). Optional mounts may fail: what is missing shows in the tests that need it.
type mount struct {
	source, target, fstype, data string
	flags                        uintptr
	optional                     bool
}

const plain = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// earlyMounts are what the initramfs itself needs: devices to talk, /proc for the command line.
var earlyMounts = []mount{
	{source: "proc", target: "/proc", fstype: "proc", flags: plain},
	{source: "sysfs", target: "/sys", fstype: "sysfs", flags: plain},
	{source: "devtmpfs", target: "/dev", fstype: "devtmpfs", flags: unix.MS_NOSUID, data: "mode=0755"},
}

// rootMounts put the host's root, read-only, under a tmpfs: the guest sees the host's programs and may write anywhere,
// and nothing reaches the host (the daemon's side is read-only too: vmrun.sh).
var rootMounts = []mount{
	{source: "hostroot", target: "/lower", fstype: "virtiofs", flags: unix.MS_RDONLY},
	{source: "tmpfs", target: "/upper", fstype: "tmpfs", data: "mode=0755"},
	{source: "overlay", target: "/newroot", fstype: "overlay", data: overlayData("/", 0)},
}

func upper(i int) string { return fmt.Sprintf("/upper/%d/u", i) }
func work(i int) string  { return fmt.Sprintf("/upper/%d/w", i) }

// overlayData is the option string of an overlay over the host's directory dir with the i-th upper directory. xino=on,
// because the layers are two file systems: without it stat(2) shows a device number that is not the mount's, which no
// plain root does.
func overlayData(dir string, i int) string {
	escape := strings.NewReplacer(`\`, `\\`, `:`, `\:`, `,`, `\,`) // ovl_parse_param and the option splitter
	return "lowerdir=" + escape.Replace(filepath.Join("/lower", dir)) + ",upperdir=" + upper(i) + ",workdir=" + work(i) + ",xino=on"
}

// shareMounts returns an overlay for each directory of share that one of the tmpfs mounts would hide. A directory
// inside an earlier one is there already.
func shareMounts(share []string, mounts []mount) []mount {
	var out []mount
	within := func(m mount, dir string) bool { return strings.HasPrefix(dir+"/", m.target+"/") }
	for i, dir := range share {
		covered := slices.ContainsFunc(mounts, func(m mount) bool { return m.fstype == "tmpfs" && within(m, dir) })
		shown := slices.ContainsFunc(out, func(m mount) bool { return within(m, dir) })
		if covered && !shown {
			out = append(out, mount{source: "overlay", target: dir, fstype: "overlay", data: overlayData(dir, i+1)})
		}
	}
	return out
}

// guestMounts are what a Debian with systemd has, below the new root: pure cgroup v2, no v1 hierarchy. /tmp and
// /var/tmp are of their own so that tests have a directory that is not on an overlay.
var guestMounts = []mount{
	{source: "proc", target: "/proc", fstype: "proc", flags: plain},
	{source: "sysfs", target: "/sys", fstype: "sysfs", flags: plain},
	{source: "devtmpfs", target: "/dev", fstype: "devtmpfs", flags: unix.MS_NOSUID, data: "mode=0755"},
	{source: "devpts", target: "/dev/pts", fstype: "devpts", flags: unix.MS_NOSUID | unix.MS_NOEXEC, data: "mode=0620,ptmxmode=0666"},
	{source: "tmpfs", target: "/dev/shm", fstype: "tmpfs", flags: unix.MS_NOSUID | unix.MS_NODEV, data: "mode=1777"},
	{source: "tmpfs", target: "/run", fstype: "tmpfs", flags: unix.MS_NOSUID | unix.MS_NODEV, data: "mode=0755"},
	{source: "tmpfs", target: "/tmp", fstype: "tmpfs", flags: unix.MS_NOSUID | unix.MS_NODEV, data: "mode=1777"},
	{source: "tmpfs", target: "/var/tmp", fstype: "tmpfs", flags: unix.MS_NOSUID | unix.MS_NODEV, data: "mode=1777"},
	{source: "cgroup2", target: "/sys/fs/cgroup", fstype: "cgroup2", flags: plain, data: "nsdelegate"},
	{source: "securityfs", target: "/sys/kernel/security", fstype: "securityfs", flags: plain, optional: true},
	{source: "bpf", target: "/sys/fs/bpf", fstype: "bpf", flags: plain, data: "mode=0700", optional: true},
	{source: "debugfs", target: "/sys/kernel/debug", fstype: "debugfs", flags: plain, data: "mode=0700", optional: true},
	{source: "tracefs", target: "/sys/kernel/tracing", fstype: "tracefs", flags: plain, data: "mode=0700", optional: true},
}

// mountAll makes each target below root and mounts on it, in order.
func mountAll(root string, mounts []mount) error {
	for _, m := range mounts {
		target := filepath.Join(root, m.target)
		err := os.MkdirAll(target, 0o755)
		if err == nil {
			err = unix.Mount(m.source, target, m.fstype, m.flags, m.data)
		}
		if err != nil && !m.optional {
			return fmt.Errorf("mount %s on %s: %w", m.fstype, target, err)
		}
	}
	return nil
}

// enterHostRoot replaces the initramfs by the host's root as switch_root(8) does: the rootfs cannot be pivoted, so the
// new root is moved over it, and pivot_root works again inside.
// The directories of share are shown even where a tmpfs of guestMounts covers them.
func enterHostRoot(share []string) error {
	if err := mountAll("/", rootMounts[:2]); err != nil {
		return err
	}
	for i := range len(share) + 1 { // one pair for the root, one for each overlay of shareMounts
		if err := errors.Join(os.MkdirAll(upper(i), 0o755), os.MkdirAll(work(i), 0o755)); err != nil {
			return err
		}
	}
	if err := mountAll("/", rootMounts[2:]); err != nil {
		return err
	}
	if err := mountAll("/newroot", append(slices.Clone(guestMounts), shareMounts(share, guestMounts)...)); err != nil {
		return err
	}
	if err := deviceLinks("/newroot/dev"); err != nil {
		return err
	}
	if err := os.Chdir("/newroot"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the new root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	return os.Chdir("/")
}

// deviceLinks makes the links that udev would: the kernel's devtmpfs has none, and bash's <(...) needs /dev/fd.
func deviceLinks(dev string) error {
	for name, target := range map[string]string{"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink("/proc/self/"+target, filepath.Join(dev, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// loadModules loads what fetch-kernels.sh chose, in its order.
func loadModules(dir string) error {
	order, err := os.ReadFile(filepath.Join(dir, "order"))
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(order)) {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	return nil
}
