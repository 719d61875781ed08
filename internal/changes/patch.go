package changes

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"golang.org/x/sys/unix"
)

// Patcher writes changes as a patch that git apply takes, in git's extended
// format (git-diff(1), "Generating patch text").
type Patcher struct {
	Set *Set
	// Lower opens the host's directory of a tree, for the files of renamed
	// directories, which a change set does not list. nil: they are left out.
	Lower func(root string) (*os.File, error)

	// Held names what the patch does not show, and why; at most ten, and then
	// how many more.
	Held []string

	w     bytes.Buffer
	more  int
	inGit int
}

// Write writes the patch of list. What it cannot show is in Held.
func (p *Patcher) Write(w io.Writer, list []Change) error {
	root := ""
	for i := range list {
		c := &list[i]
		if c.Root != root && i > 0 {
			fmt.Fprintf(&p.w, "# tree %s\n", gitQuote("", c.Root))
		}
		root = c.Root
		p.change(c, list)
		if _, err := p.w.WriteTo(w); err != nil {
			return err
		}
	}
	if p.more > 0 {
		p.Held = append(p.Held, fmt.Sprintf("%d more", p.more))
	}
	if p.inGit > 0 {
		p.Held = append(p.Held, fmt.Sprintf("%d in .git, where git applies nothing", p.inGit))
	}
	return nil
}

func (p *Patcher) leftOut(c *Change, why string) {
	const most = 10
	if len(p.Held) == most {
		p.more++
		return
	}
	p.Held = append(p.Held, c.name()+": "+why)
}

func (p *Patcher) change(c *Change, list []Change) {
	o, n := c.Entry.Old, c.Entry.New
	switch {
	case strings.Contains("/"+strings.ToLower(c.Path)+"/", "/.git/"):
		p.inGit++
	case c.Op == Renamed:
		p.renamed(c, list)
	case o != nil && n != nil && o.Type == Dir && n.Type != Dir && p.Set.emptied(c.Entry):
		p.leftOut(c, "it takes the place of a directory with empty ones in it, which git does not know and so cannot remove")
	case o != nil && n != nil && o.Type != n.Type:
		p.object(c, o, nil)
		p.object(c, nil, n)
	default:
		p.object(c, o, n)
	}
}

// emptied reports a directory that was deleted, at or below e, without a file or
// link anywhere in it.
func (s *Set) emptied(e *Entry) bool {
	last := e.N
	for last < len(s.Entries) && s.Entries[last].Parent >= e.N {
		last++
	}
	full := map[int]bool{}
	for n := last; n >= e.N; n-- { // what is in a directory comes after it
		d := s.at(n)
		if d.Old != nil && d.Old.Type == Dir && !full[n] {
			return true
		}
		if d.Old != nil {
			full[d.Parent] = true
		}
	}
	return false
}

// object writes one side turning into the other; nil is /dev/null.
func (p *Patcher) object(c *Change, o, n *Node) {
	before, okOld := p.bytes(o)
	after, okNew := p.bytes(n)
	some := o
	if n != nil {
		some = n
	}
	switch {
	case some.Type == Dir:
		return // git knows no directories
	case some.Type != File && some.Type != Symlink:
		p.leftOut(c, string(some.Type))
		return
	case !okOld || !okNew:
		p.leftOut(c, "its content is not kept")
		return
	}
	from, to := c.Path, c.Path
	if c.OldPath != "" && o != nil {
		from = c.OldPath
	}
	same := bytes.Equal(before, after) && o != nil && n != nil
	if same && from == to && gitMode(o) == gitMode(n) {
		if n.Shared {
			p.leftOut(c, "it became a hard link")
		}
		return // owner, attributes, other bits of the mode: git does not know them
	}
	fmt.Fprintf(&p.w, "diff --git %s %s\n", gitQuote("a/", from), gitQuote("b/", to))
	p.header(o, n, from, to)
	if same {
		return
	}
	fmt.Fprintf(&p.w, "index %s..%s\n", gitHash(before, o != nil), gitHash(after, n != nil))
	switch {
	case len(before) == 0 && len(after) == 0:
		return
	case isBinary(before) || isBinary(after):
		p.binary(before, after)
	default:
		p.hunks(before, after, o != nil, n != nil, from, to)
	}
}

func (p *Patcher) header(o, n *Node, from, to string) {
	switch {
	case o == nil:
		fmt.Fprintf(&p.w, "new file mode %s\n", gitMode(n))
	case n == nil:
		fmt.Fprintf(&p.w, "deleted file mode %s\n", gitMode(o))
	default:
		if gitMode(o) != gitMode(n) {
			fmt.Fprintf(&p.w, "old mode %s\nnew mode %s\n", gitMode(o), gitMode(n))
		}
		if from != to {
			fmt.Fprintf(&p.w, "rename from %s\nrename to %s\n", gitQuote("", from), gitQuote("", to))
		}
	}
}

func (p *Patcher) hunks(before, after []byte, hadOld, hasNew bool, from, to string) {
	names := [2]string{"/dev/null", "/dev/null"}
	if hadOld {
		names[0] = gitQuote("a/", from)
	}
	if hasNew {
		names[1] = gitQuote("b/", to)
	}
	text := diff.Diff("a", before, "b", after)
	for range 3 { // its own head
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			text = text[i+1:]
		}
	}
	fmt.Fprintf(&p.w, "--- %s\n+++ %s\n", tabbed(names[0]), tabbed(names[1]))
	p.w.Write(text)
}

// tabbed ends a name with spaces as git does, so that readers do not cut it.
func tabbed(name string) string {
	if strings.Contains(name, " ") {
		return name + "\t"
	}
	return name
}

// bytes is the content of a file or the target of a link, as git stores both.
func (p *Patcher) bytes(n *Node) ([]byte, bool) {
	switch {
	case n == nil:
		return nil, true
	case n.Type == Symlink:
		return n.Target, true
	case n.Type != File || n.Size == 0:
		return nil, true
	}
	b := p.Set.content(n)
	return b, b != nil
}

// renamed writes a rename for each file of the directory that has no entry of
// its own; those that have are written with it.
func (p *Patcher) renamed(c *Change, list []Change) {
	if p.Lower == nil {
		p.leftOut(c, "a renamed directory")
		return
	}
	known := map[string]bool{}
	for i := range list {
		o := &list[i]
		if o.Root != c.Root {
			continue
		}
		if o.OldPath != "" && o != c {
			known[o.OldPath] = true
		} else if o.Entry.Old != nil {
			known[o.Path] = true
		}
	}
	top, err := p.Lower(c.Root)
	if err != nil {
		p.leftOut(c, err.Error())
		return
	}
	defer top.Close()
	files, err := filesBelow(int(top.Fd()), c.OldPath, known)
	for _, f := range files {
		to := c.Path + strings.TrimPrefix(f, c.OldPath)
		fmt.Fprintf(&p.w, "diff --git %s %s\nsimilarity index 100%%\nrename from %s\nrename to %s\n",
			gitQuote("a/", f), gitQuote("b/", to), gitQuote("", f), gitQuote("", to))
	}
	if err != nil {
		p.leftOut(c, err.Error())
	}
}

// filesBelow lists files and links below a directory, but for the names in skip
// and what lies below them.
func filesBelow(top int, dir string, skip map[string]bool) ([]string, error) {
	const most, deepest = 100000, 256
	var out []string
	var walk func(dir string, depth int) error
	walk = func(dir string, depth int) error {
		fd, err := openPath(top, []byte(dir))
		if err != nil || fd < 0 {
			return errors.Join(err, errGone(fd))
		}
		defer unix.Close(fd)
		names, err := sortedNames(fd)
		if err != nil {
			return err
		}
		for _, n := range names {
			at := path.Join(dir, n)
			m, err := statAt(fd, n)
			switch {
			case skip[at] || err != nil:
			case m.typ() == Dir && depth < deepest:
				if err := walk(at, depth+1); err != nil {
					return err
				}
			case m.typ() == File || m.typ() == Symlink:
				if out = append(out, at); len(out) > most {
					return errors.New("too many files")
				}
			}
		}
		return nil
	}
	err := walk(dir, 0)
	return out, err
}

func errGone(fd int) error {
	if fd < 0 {
		return errors.New("the directory is not there any more")
	}
	return nil
}

// WriteStat writes lines added and removed per path, as git diff --stat does.
func (p *Patcher) WriteStat(w io.Writer, list []Change) error {
	var added, removed int
	for i := range list {
		c := &list[i]
		before, ok1 := p.bytes(c.Entry.Old)
		after, ok2 := p.bytes(c.Entry.New)
		what := ""
		switch {
		case c.Op == Renamed || c.node().Type == Dir:
		case !ok1 || !ok2 || isBinary(before) || isBinary(after):
			what = fmt.Sprintf("Bin %d -> %d bytes", sizeOf(c.Entry.Old), sizeOf(c.Entry.New))
		default:
			a, r := countLines(diff.Diff("a", before, "b", after))
			added, removed = added+a, removed+r
			what = fmt.Sprintf("+%d -%d", a, r)
		}
		if _, err := fmt.Fprintf(w, "%c %s | %s\n", c.Op, c.name(), what); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%d paths, +%d -%d lines\n", len(list), added, removed)
	return err
}

func sizeOf(n *Node) int64 {
	if n == nil {
		return 0
	}
	return n.Size
}

func countLines(d []byte) (added, removed int) {
	for i, l := range bytes.Split(d, []byte("\n")) {
		switch {
		case i < 3 || len(l) == 0:
		case l[0] == '+':
			added++
		case l[0] == '-':
			removed++
		}
	}
	return added, removed
}
