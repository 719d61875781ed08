package changes

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// editor makes random changes, the same ones below each of its roots.
type editor struct {
	r     *rand.Rand
	roots []string
	log   []string
	clock int64
	plain bool
}

var names = []string{"a", "b", "c", "d", "e", "new\nline", "\xff\xfe", "a b", "--x", strings.Repeat("n", 20)}

func (e *editor) name() string { return names[e.r.IntN(len(names))] }

// paths lists what is below the first root, with directories only or files only.
func (e *editor) paths(keep func(fm os.FileMode) bool) []string {
	var out []string
	_ = filepath.WalkDir(e.roots[0], func(p string, d os.DirEntry, err error) error {
		if err == nil && keep(d.Type()) {
			out = append(out, strings.TrimPrefix(strings.TrimPrefix(p, e.roots[0]), "/"))
		}
		return nil
	})
	slices.Sort(out)
	return out
}

func (e *editor) one(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[e.r.IntN(len(list))]
}

func (e *editor) dir() string  { return e.one(e.paths(os.FileMode.IsDir)) }
func (e *editor) file() string { return e.one(e.paths(os.FileMode.IsRegular)) }
func (e *editor) any() string {
	return e.one(e.paths(func(os.FileMode) bool { return true }))
}

// all does one thing below every root. An error is the same below each.
func (e *editor) all(t *testing.T, what string, do func(root string) error) {
	t.Helper()
	var first error
	for i, root := range e.roots {
		err := do(root)
		if i == 0 {
			first = err
		} else if (err == nil) != (first == nil) {
			t.Fatalf("%s: %v natively, %v in the overlay, after\n%s", what, first, err, strings.Join(e.log, "\n"))
		}
	}
	if first == nil {
		e.log = append(e.log, what)
	}
}

func (e *editor) write(p string, flags int, content string) func(string) error {
	e.clock++
	at := time.Unix(1_700_000_000+e.clock, 123)
	return func(root string) error {
		f, err := os.OpenFile(path.Join(root, p), flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
		if err != nil {
			return err
		}
		_, err = f.WriteString(content)
		if err := f.Close(); err != nil {
			return err
		}
		if err != nil {
			return err
		}
		return os.Chtimes(path.Join(root, p), at, at)
	}
}

// grow makes the base tree.
func (e *editor) grow() {
	d, n := e.dir(), e.name()
	p := path.Join(d, n)
	switch e.r.IntN(5) {
	case 0, 1:
		_ = os.Mkdir(path.Join(e.roots[0], p), 0o755)
	case 2:
		_ = os.Symlink(e.name(), path.Join(e.roots[0], p))
	default:
		_ = e.write(p, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fmt.Sprint("base", e.r.IntN(9)))(e.roots[0])
	}
}

// edit makes one change.
func (e *editor) edit(t *testing.T) {
	t.Helper()
	in := func(root, p string) string { return path.Join(root, p) }
	fresh, d, f, a := path.Join(e.dir(), e.name()), e.dir(), e.file(), e.any()
	mode := uint32(e.r.IntN(0o1000)) | 0o700
	content := fmt.Sprint("text", e.r.IntN(5))
	kind := e.r.IntN(17)
	if e.plain && (kind >= 5 && kind <= 8 || kind == 10 || kind == 14 || kind == 16) {
		kind = e.r.IntN(4)
	}
	switch kind {
	case 0:
		e.all(t, fmt.Sprintf("create %q", fresh), e.write(fresh, os.O_CREATE|os.O_EXCL|os.O_WRONLY, content))
	case 1:
		e.all(t, fmt.Sprintf("append %q", f), e.write(f, os.O_APPEND|os.O_WRONLY, content))
	case 2:
		e.all(t, fmt.Sprintf("truncate and write %q", f), e.write(f, os.O_TRUNC|os.O_WRONLY, content))
	case 3:
		e.all(t, fmt.Sprintf("mkdir %q", fresh), func(r string) error { return unix.Mkdir(in(r, fresh), 0o755) })
	case 4:
		if a != "" {
			e.all(t, fmt.Sprintf("rm -r %q", a), func(r string) error { return os.RemoveAll(in(r, a)) })
		}
	case 5, 6, 7:
		if a != "" {
			e.all(t, fmt.Sprintf("mv %q %q", a, fresh), func(r string) error { return unix.Rename(in(r, a), in(r, fresh)) })
		}
	case 8:
		if b := e.any(); a != "" && b != "" {
			e.all(t, fmt.Sprintf("exchange %q %q", a, b), func(r string) error {
				return unix.Renameat2(unix.AT_FDCWD, in(r, a), unix.AT_FDCWD, in(r, b), unix.RENAME_EXCHANGE)
			})
		}
	case 9:
		e.all(t, fmt.Sprintf("symlink %q", fresh), func(r string) error { return os.Symlink(content, in(r, fresh)) })
	case 10:
		if f != "" {
			e.all(t, fmt.Sprintf("ln %q %q", f, fresh), func(r string) error { return os.Link(in(r, f), in(r, fresh)) })
		}
	case 11:
		e.all(t, fmt.Sprintf("chmod %o %q", mode&0o777, f), func(r string) error { return unix.Chmod(in(r, f), mode&0o777) })
	case 12:
		e.all(t, fmt.Sprintf("chmod dir %q", d), func(r string) error { return unix.Chmod(in(r, d), mode&0o777|0o2000) })
	case 13:
		e.all(t, fmt.Sprintf("setxattr %q", f), func(r string) error { return unix.Setxattr(in(r, f), "user.t", []byte(content), 0) })
	case 14:
		e.all(t, fmt.Sprintf("mkfifo %q", fresh), func(r string) error { return unix.Mkfifo(in(r, fresh), 0o640) })
	case 15:
		e.all(t, fmt.Sprintf("open for writing %q", f), func(r string) error {
			g, err := os.OpenFile(in(r, f), os.O_RDWR|unix.O_NOFOLLOW, 0)
			if err == nil {
				err = g.Close()
			}
			return err
		})
	case 16:
		if d != "" {
			e.all(t, fmt.Sprintf("replace %q by another directory", d), func(r string) error {
				if err := os.RemoveAll(in(r, d)); err != nil {
					return err
				}
				return unix.Mkdir(in(r, d), 0o750)
			})
		}
	}
}

func empty(set *Set) bool {
	sum := set.summary()
	return sum.Empty()
}

// summary counts the changes of a set.
func (s *Set) summary() Summary {
	var sum Summary
	for i := range s.Entries {
		sum.count(&s.Entries[i])
	}
	return sum
}
