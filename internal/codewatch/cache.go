package codewatch

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Cache keeps digests of system files from one run to the next, until the next boot.
//
// It is a directory that only root may enter, with one symbolic link for each of
// a fixed number of slots: a link is made and replaced in one step, is read by
// one call, and its target needs no file. A target is "KEY=DIGEST", KEY being the
// boot, stat's device and inode, ctime and size: what else may have the slot's
// number shows in it. No user can give a file the ctime that another had, and
// only root mounts another file system under the device of a system directory.
type Cache struct {
	dir  *os.File
	boot string
}

const cacheSlots = 1 << 12

// OpenCache opens or makes the cache at path, whose parent must be root's.
// boot is the kernel's boot id.
func OpenCache(path, boot string) (*Cache, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !os.IsExist(err) {
		return nil, err
	}
	f, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Uid != uint32(os.Geteuid()) || st.Mode&0o077 != 0 {
		f.Close()
		return nil, fmt.Errorf("%s is not a directory for us alone (uid %d, mode %o)", path, st.Uid, st.Mode&0o7777)
	}
	return &Cache{f, boot}, nil
}

// Close releases the directory.
func (c *Cache) Close() error {
	if c == nil {
		return nil
	}
	return c.dir.Close()
}

func (c *Cache) text(k key) string {
	return fmt.Sprintf("%s %x %x %x %x", c.boot, k.dev, k.ino, k.Ctime, k.Size)
}

// slot is the name of the place of a key. The same keys always collide, and only
// cost each other a hash.
func slot(text string) string {
	var h uint32 = 2166136261 // FNV-1a
	for i := range len(text) {
		h = (h ^ uint32(text[i])) * 16777619
	}
	return fmt.Sprintf("%03x", (h^h>>16)%cacheSlots)
}

// get returns a digest that was put in since the boot.
func (c *Cache) get(k key) (string, bool) {
	if c == nil {
		return "", false
	}
	text := c.text(k)
	buf := make([]byte, 256)
	n, err := unix.Readlinkat(int(c.dir.Fd()), slot(text), buf)
	if err != nil {
		return "", false
	}
	sum, ok := strings.CutPrefix(string(buf[:n]), text+"=")
	return sum, ok && len(sum) == hex.EncodedLen(sha256.Size)
}

// put keeps a digest. A failure costs the next run a hash, nothing else.
func (c *Cache) put(k key, sum string) {
	if c == nil {
		return
	}
	text, dir := c.text(k), int(c.dir.Fd())
	tmp := fmt.Sprintf(".%s-%d", slot(text), unix.Gettid())
	if unix.Symlinkat(text+"="+sum, dir, tmp) != nil || unix.Renameat(dir, tmp, dir, slot(text)) != nil {
		_ = unix.Unlinkat(dir, tmp, 0)
	}
}
