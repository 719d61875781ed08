// Package loopfs makes a file system of an exact size on disk: ext4 in an image
// file without a name, on a loop device that lets go of it by itself. Whoever
// holds the mount holds all of it, so that nothing is left of it, not even after
// SIGKILL: with the last descriptor and the last namespace that has the mount, the
// kernel unmounts the file system, clears the device and frees the file
// (loop(4), LO_FLAGS_AUTOCLEAR; open(2), O_TMPFILE).
//
// The room is taken when the image is made, not when it is written: a disk that
// fills up later takes nothing from it. Linux only.
package loopfs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mkfs is where mke2fs(8) is looked for. It is run as root, so PATH does not count.
var mkfs = []string{"/usr/sbin/mke2fs", "/sbin/mke2fs", "/usr/bin/mke2fs", "/usr/local/sbin/mke2fs", "/run/current-system/sw/bin/mke2fs"}

// Look says how many bytes are free in dir's file system, and why this host cannot
// make such a file system there, or "". It tries nothing.
func Look(dir *os.File) (free int64, missing string) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return 0, "fstatfs: " + err.Error()
	}
	free = int64(st.Bavail) * st.Bsize
	switch st.Type {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return free, "the state directory lies in memory itself"
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return free, "there are no loop devices: " + err.Error()
	}
	if mke2fs() == "" {
		return free, "mke2fs (e2fsprogs) is not installed"
	}
	return free, ""
}

func mke2fs() string {
	i := slices.IndexFunc(mkfs, func(p string) bool { st, err := os.Stat(p); return err == nil && st.Mode().IsRegular() })
	if i < 0 {
		return ""
	}
	return mkfs[i]
}

const (
	block     = 4096
	inodeSize = 256
	ownInodes = 12 // the ten reserved ones, lost+found, the ballast (fs/ext4/ext4.h, EXT4_GOOD_OLD_FIRST_INO)
)

// Make returns a detached mount (fsmount(2), an O_PATH descriptor) of a new file
// system whose root directory is empty but for lost+found and takes bytes, to
// the block, and files new ones; files below 0 is as many as fit. The image takes
// its room, bytes and some percent, in dir's file system.
func Make(dir *os.File, bytes, files int64) (*os.File, error) {
	inodes := bytes/8192 + 64
	if files >= 0 {
		inodes = files + ownInodes
	}
	image, err := makeImage(dir, imageSize(bytes, inodes))
	if err != nil {
		return nil, err
	}
	defer image.Close()
	if err := format(image, inodes); err != nil {
		return nil, err
	}
	loop, err := attach(image)
	if err != nil {
		return nil, err
	}
	defer loop.Close() // the mount has it open
	mount, err := mountOf(loop)
	if err != nil {
		return nil, err
	}
	if err := fill(mount, bytes, files); err != nil {
		return nil, errors.Join(err, mount.Close())
	}
	return mount, nil
}

// Size is what an image for so many bytes takes, in bytes, where the number of
// files is not limited.
func Size(bytes int64) int64 { return imageSize(bytes, bytes/8192+64) }

// imageSize is more than what is asked for and ext4's own: inode tables, two
// bitmaps in 128 MiB, and what it holds back for itself (fs/ext4/super.c,
// ext4_calculate_resv_clusters: 2 percent, at most 4096 blocks).
func imageSize(bytes, inodes int64) int64 {
	n := bytes + inodes*inodeSize + inodes*inodeSize/16 + min(bytes/32, 4096*block) + bytes/512 + 8<<20
	return (n + block - 1) / block * block
}

// makeImage takes the room. It asks first: fallocate(2) of more than there is
// takes all there is before it fails, and others would meet a full disk.
func makeImage(dir *os.File, size int64) (*os.File, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return nil, os.NewSyscallError("fstatfs", err)
	}
	if free := int64(st.Bavail) * st.Bsize; size > free {
		return nil, fmt.Errorf("an image of %d bytes, where %d are free: %w", size, free, unix.ENOSPC)
	}
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("image: %w", os.NewSyscallError("open(O_TMPFILE)", err))
	}
	image := os.NewFile(uintptr(fd), "image")
	if err := unix.Fallocate(fd, 0, 0, size); err != nil {
		return nil, errors.Join(fmt.Errorf("image of %d bytes: %w", size, os.NewSyscallError("fallocate", err)), image.Close())
	}
	return image, nil
}

// format writes an empty file system. There is no journal: nobody looks at it
// after a crash.
func format(image *os.File, inodes int64) error {
	cmd := exec.Command(mke2fs(), "-q", "-F", "-t", "ext4", "-b", strconv.Itoa(block), "-I", strconv.Itoa(inodeSize), "-m", "0", "-N", strconv.FormatInt(inodes, 10),
		"-O", "none,extent,filetype,flex_bg,dir_index,large_file,huge_file,dir_nlink,extra_isize,sparse_super,metadata_csum",
		"-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", "/proc/self/fd/3")
	cmd.Env, cmd.Dir = []string{"MKE2FS_CONFIG=/dev/null"}, "/"
	cmd.ExtraFiles = []*os.File{image}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mke2fs: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// attach puts the image on a loop device.
func attach(image *os.File) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(image.Fd()), Size: block, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO}}
	copy(config.Info.File_name[:], "agentguard")
	for range 64 { // others take free devices too
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, os.NewSyscallError("ioctl(LOOP_CTL_GET_FREE)", err)
		}
		loop, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		if err = unix.IoctlLoopConfigure(int(loop.Fd()), &config); err == nil {
			return loop, nil
		}
		loop.Close()
		if err != unix.EBUSY {
			return nil, os.NewSyscallError("ioctl(LOOP_CONFIGURE)", err)
		}
	}
	return nil, errors.New("no loop device was free")
}

// mountOf mounts the device, which is named by descriptor: nobody can put another
// in its place.
func mountOf(loop *os.File) (*os.File, error) {
	fs, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen(ext4)", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetString(fs, "source", "/proc/self/fd/"+strconv.Itoa(int(loop.Fd()))); err != nil {
		return nil, os.NewSyscallError("fsconfig(source)", err)
	}
	for _, flag := range []string{"nobarrier", "noinit_itable", "nodiscard"} { // it need not outlive a crash, nor be tidy
		if err := unix.FsconfigSetFlag(fs, flag); err != nil {
			return nil, fmt.Errorf("fsconfig(%s): %w", flag, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, os.NewSyscallError("mount of ext4", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	return os.NewFile(uintptr(fd), "ext4"), nil
}

// fill takes away what there is beyond the limits.
func fill(mount *os.File, bytes, files int64) error {
	const name = "lost+found" // root's alone
	dir, err := unix.Openat(int(mount.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, "ballast", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("ballast: %w", err)
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	if files >= 0 {
		for i := files; i < int64(st.Ffree); i++ {
			if err := unix.Mknodat(dir, strconv.FormatInt(i, 10), unix.S_IFREG, 0); err != nil {
				return fmt.Errorf("ballast: %w", err)
			}
		}
		if err := unix.Fstatfs(fd, &st); err != nil {
			return os.NewSyscallError("fstatfs", err)
		}
	}
	room := int64(st.Bavail) * block
	if room < bytes {
		return fmt.Errorf("the file system takes %d bytes only, not %d", room, bytes)
	}
	if more := (room - bytes) / block * block; more > 0 {
		return os.NewSyscallError("fallocate", unix.Fallocate(fd, 0, 0, more))
	}
	return nil
}
