package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// openTree is a directory with every kind of link, whose file "file" is the
// only thing that a walk may end at.
func openTree(t *testing.T) string {
	t.Helper()
	testenv.Root(t)
	base := publicDir(t)
	mkfile(t, base+"/file", "", 0o644, 0, 0)
	mkfile(t, base+"/root/sub/file", "", 0o644, 0, 0)
	mkdirOwned(t, base+"/user", 0o755, testUID, testGID)
	mkdirOwned(t, base+"/sticky", 0o777|os.ModeSticky, 0, 0)
	mkdirOwned(t, base+"/group", 0o775, 0, testGID)
	mkdirOwned(t, base+"/closed", 0o700, 0, 0)
	mkfile(t, base+"/closed/file", "", 0o644, 0, 0)
	for link, target := range map[string]string{
		"root/absolute": base + "/file", "root/relative": "../file", "root/dangling": "nothing", "root/dir": "sub",
		"root/dots": ".//./sub/../../file", "root/up": strings.Repeat("../", 50) + base[1:] + "/file",
		"root/a": "b", "root/b": "a", "root/self": "self", "root/touser": "../user/link",
		"user/link": base + "/file", "sticky/link": base + "/file", "group/link": base + "/file",
	} {
		must(t, os.Symlink(target, filepath.Join(base, link)))
	}
	must(t, os.Symlink(base+"/file", base+"/chain0"))
	for i := 1; i <= maxLinks; i++ {
		must(t, os.Symlink(fmt.Sprintf("chain%d", i-1), fmt.Sprintf("%s/chain%d", base, i)))
	}
	return base
}

func TestOpenPath(t *testing.T) {
	base := openTree(t)
	var file, sub unix.Stat_t
	must(t, unix.Stat(base+"/file", &file), unix.Stat(base+"/root/sub", &sub))
	before := testenv.Descriptors()
	for _, c := range []struct {
		name string
		ino  uint64 // of what must be opened; 0: an error
		err  error  // or its text
		text string
	}{
		{name: "/file", ino: file.Ino},
		{name: "//.//file", ino: file.Ino},
		{name: "/root/sub/", ino: sub.Ino},
		{name: "/root/../file", ino: file.Ino},
		{name: strings.Repeat("/root/..", 200) + "/file", ino: file.Ino},
		{name: strings.Repeat("/.", 4000) + "/file", ino: file.Ino},
		{name: "/root/absolute", ino: file.Ino},
		{name: "/root/relative", ino: file.Ino},
		{name: "/root/dots", ino: file.Ino},
		{name: "/root/up", ino: file.Ino},
		{name: "/root/dir", ino: sub.Ino},
		{name: "/root/dir/../../file", ino: file.Ino}, // ".." is the real parent's
		{name: "/chain39", ino: file.Ino},             // 40 links, as the kernel
		{name: "/chain40", err: unix.ELOOP},
		{name: "/root/a", err: unix.ELOOP},
		{name: "/root/self", err: unix.ELOOP},
		{name: "/root/dangling", err: unix.ENOENT, text: "/root/nothing: "},
		{name: "/nowhere/at/all", err: unix.ENOENT, text: "/nowhere: "},
		{name: "/file/below", err: unix.ENOTDIR, text: "/file/below: "},
		{name: "/" + strings.Repeat("n", 256), err: unix.ENAMETOOLONG},
		{name: "/user/link", text: "/user/link is a symbolic link to " + base + "/file in a directory that root does not own"},
		{name: "/root/touser", text: "/user/link is a symbolic link"},
		{name: "/sticky/link", text: "/sticky/link is a symbolic link"},
		{name: "/group/link", text: "/group/link is a symbolic link"},
	} {
		t.Run(c.name[:min(len(c.name), 30)], func(t *testing.T) {
			o, err := openPath(base + c.name)
			if c.ino != 0 {
				must(t, err)
				defer o.File.Close()
				if o.Stat.Ino != c.ino || o.Stat.Dev != file.Dev || o.Path != filepath.Clean(base+c.name) {
					t.Errorf("opened %d as %q, want %d", o.Stat.Ino, o.Path, c.ino)
				}
				return
			}
			if err == nil {
				t.Fatal("opened", o.File.Close())
			}
			if (c.err != nil && !errors.Is(err, c.err)) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %v with %q", err, c.err, c.text)
			}
		})
	}
	if n := testenv.Since(before); n != 0 {
		t.Errorf("%d descriptors are left", n)
	}
}

func TestOpenPathWantsAbsolute(t *testing.T) {
	for _, name := range []string{"", ".", "etc/passwd", "./etc", "/etc/\x00passwd", "\x00"} {
		if o, err := openPath(name); err == nil || !strings.Contains(err.Error(), "is not an absolute path") {
			t.Errorf("%q: %v, %v", name, o, err)
		}
	}
	o, err := openPath("/")
	must(t, err)
	defer o.File.Close()
	if !o.Dir() || o.Path != "/" {
		t.Errorf("/ is %+v", o)
	}
}

// What the caller may not enter stays closed though the process is root's.
func TestOpenPathAsCaller(t *testing.T) {
	base := openTree(t)
	c := Caller{UID: testUID, GID: testGID, Sudo: true}
	err := c.As(func() error {
		o, err := openPath(base + "/closed/file")
		if err == nil {
			o.File.Close()
		}
		return err
	})
	if !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), base+"/closed/file: permission denied") {
		t.Errorf("closed to the caller, but: %v", err)
	}
	must(t, c.As(func() error {
		o, err := openPath(base + "/root/sub/file")
		if err == nil {
			err = o.File.Close()
		}
		return err
	}))
}

// No link of any depth is followed from a place where the caller could re-aim it:
// while a directory and a link to a secret change places, a walk ends at the
// directory's own file or fails.
func TestOpenPathRace(t *testing.T) {
	testenv.Root(t)
	base := publicDir(t)
	mkdirOwned(t, base+"/user", 0o755, testUID, testGID)
	mkfile(t, base+"/user/name/file", "", 0o644, testUID, testGID)
	mkfile(t, base+"/secret/file", "", 0o600, 0, 0)
	must(t, os.Symlink(base+"/secret", base+"/user/evil"))
	var good unix.Stat_t
	must(t, unix.Stat(base+"/user/name/file", &good))
	var stop atomic.Bool
	var swaps sync.WaitGroup
	swaps.Go(func() {
		for !stop.Load() {
			if err := unix.Renameat2(unix.AT_FDCWD, base+"/user/name", unix.AT_FDCWD, base+"/user/evil", unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
				return
			}
		}
	})
	var opened, refused int
	for range 20000 {
		o, err := openPath(base + "/user/name/file")
		if err != nil {
			refused++
			continue
		}
		if o.Stat.Ino != good.Ino {
			t.Errorf("the walk left for inode %d", o.Stat.Ino)
		}
		opened++
		must(t, o.File.Close())
		if t.Failed() || (opened > 200 && refused > 200) {
			break
		}
	}
	stop.Store(true)
	swaps.Wait()
	if opened == 0 || refused == 0 {
		t.Errorf("no race: %d opened, %d refused", opened, refused)
	}
}
