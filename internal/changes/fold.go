package changes

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/trace"
)

// Fold is what git ignores in one place, as one line.
type Fold struct {
	Root string // host path of the tree
	Dir  string // the ignored directory below it; "": single files that a pattern fits

	Added, Modified int
	Bytes           int64          // of what is there now
	Why             map[string]int // dangers that are not listed one by one
}

// FoldIgnored parts what git ignores, build output for the most, from the other
// changes. The host's .gitignore files decide, as they are now, and not what the
// run made of them: it cannot hide anything with its own. Deletions, renames,
// what changed its type and what commit holds back are never folded, nor is what
// git tracks all the same: files that were there before are folded only where the
// repository's index can be asked. lower
// opens the top directory of a tree; where that fails nothing of it is folded.
func (s *Set) FoldIgnored(list []Change, lower func(root string) (*os.File, error)) (shown []Change, folds []Fold) {
	byRoot := map[string]*ignores{}
	tops := []*os.File{}
	defer func() {
		for _, f := range tops {
			f.Close()
		}
	}()
	at := map[[2]string]int{}
	for i := range list {
		c := &list[i]
		g, known := byRoot[c.Root]
		if !known {
			if top, err := lower(c.Root); err == nil {
				tops = append(tops, top)
				g = newIgnores(func(dir string) []byte { return readIgnore(top, dir) })
				g.tracked, g.known = trackedIn(top)
				g.nested = func(dir string) bool { return holdsGit(top, dir) }
			}
			byRoot[c.Root] = g
		}
		dir, ok := c.folds(g)
		if !ok {
			shown = append(shown, *c)
			continue
		}
		key := [2]string{c.Root, dir}
		n, seen := at[key]
		if !seen {
			n = len(folds)
			at[key] = n
			folds = append(folds, Fold{Root: c.Root, Dir: dir, Why: map[string]int{}})
		}
		folds[n].add(c)
	}
	return shown, folds
}

// folds tells where a change is folded into.
func (c *Change) folds(g *ignores) (dir string, ok bool) {
	if g == nil || c.Danger.Protected || c.Op != Added && c.Op != Modified || c.OldPath != "" || c.Path == "" || strings.HasPrefix(c.Path, cut+"/") {
		return "", false
	}
	if c.node().Type == Dir {
		dir = g.dir(c.Path)
		return dir, dir != ""
	}
	if g.tracked[c.Path] || c.Op == Modified && (!g.known || g.inNested(parentOf(c.Path))) {
		return "", false
	}
	if dir = g.dir(parentOf(c.Path)); dir != "" {
		return dir, true
	}
	return "", g.file(c.Path)
}

// holdsGit reports a directory of the host that is a repository of its own.
func holdsGit(top *os.File, dir string) bool {
	fd, err := openPath(int(top.Fd()), []byte(dir))
	if err != nil || fd < 0 {
		return err != nil
	}
	defer unix.Close(fd)
	_, err = statAt(fd, ".git")
	return err != unix.ENOENT
}

func (f *Fold) add(c *Change) {
	if c.Op == Added {
		f.Added++
	} else {
		f.Modified++
	}
	f.Bytes += c.node().Size
	if c.Danger.Why != "" {
		f.Why[c.Danger.Why]++
	}
}

// readIgnore reads the .gitignore of a directory of the host; at the top what
// .git/info/exclude says comes before it.
func readIgnore(top *os.File, dir string) []byte {
	fd, err := openPath(int(top.Fd()), []byte(path.Join(".", dir)))
	if err != nil || fd < 0 {
		return nil
	}
	defer unix.Close(fd)
	var out []byte
	if dir == "" {
		if info, err := openPath(fd, []byte(".git/info")); err == nil && info >= 0 {
			out = append(readSmall(info, "exclude", maxIgnore), '\n')
			unix.Close(info)
		}
	}
	return append(out, readSmall(fd, ".gitignore", maxIgnore)...)
}

// maxIgnore bounds a file that a person wrote, in bytes.
const maxIgnore = 1 << 20

// readSmall reads a regular file of the host; nil where it is none, or has more
// than most bytes.
func readSmall(dir int, name string, most int64) []byte {
	fd, err := openBeneath(dir, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() > most {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return nil
	}
	return b
}

// WriteFolds writes one line a fold, and one for each reason to look inside.
func WriteFolds(w io.Writer, folds []Fold) error {
	var b bytes.Buffer
	root := ""
	for i := range folds {
		f := &folds[i]
		if f.Root != root {
			root = f.Root
			fmt.Fprintf(&b, "%s, ignored by git (--all lists them)\n", trace.Quote(root))
		}
		name := "single files"
		if f.Dir != "" {
			name = trace.Quote(path.Clean(f.Dir) + "/")
		}
		fmt.Fprintf(&b, "  %s  (%s, %s)\n", name, f.counted(), trace.Size(uint64(max(f.Bytes, 0))))
		for _, why := range slices.Sorted(maps.Keys(f.Why)) {
			fmt.Fprintf(&b, "      of %d: %s\n", f.Why[why], why)
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (f *Fold) counted() string {
	var parts []string
	if f.Added > 0 {
		parts = append(parts, fmt.Sprintf("%d added", f.Added))
	}
	if f.Modified > 0 {
		parts = append(parts, fmt.Sprintf("%d modified", f.Modified))
	}
	return strings.Join(parts, ", ")
}
