package changes

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/hex"
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
		p.Held = append(p.Held, fmt.Sprintf("%d paths in .git, where git applies nothing", p.inGit))
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
	case o != nil && n != nil && o.Type != n.Type:
		p.object(c, o, nil)
		p.object(c, nil, n)
	default:
		p.object(c, o, n)
	}
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

func isBinary(b []byte) bool { return bytes.IndexByte(b[:min(len(b), 8000)], 0) >= 0 }

func gitMode(n *Node) string {
	switch {
	case n.Type == Symlink:
		return "120000"
	case n.Mode&0o100 != 0:
		return "100755"
	}
	return "100644"
}

func gitHash(b []byte, there bool) string {
	if !there {
		return strings.Repeat("0", 40)
	}
	h := sha1.New() // git's object names
	fmt.Fprintf(h, "blob %d\x00", len(b))
	h.Write(b)
	return hex.EncodeToString(h.Sum(nil))
}

// gitQuote writes a path as git does: in double quotes with C escapes when it
// has a control character, a quote, a backslash or a byte beyond ASCII.
func gitQuote(prefix, p string) string {
	s := prefix + p
	plain := true
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			plain = false
		}
	}
	if plain {
		return s
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case c < 0x20 || c >= 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// binary writes both directions of a binary patch: zlib, in lines of base 85.
func (p *Patcher) binary(before, after []byte) {
	p.w.WriteString("GIT binary patch\n")
	for _, side := range [][]byte{after, before} {
		fmt.Fprintf(&p.w, "literal %d\n", len(side))
		var z bytes.Buffer
		zw := zlib.NewWriter(&z)
		zw.Write(side) // to memory: cannot fail
		zw.Close()
		for data := z.Bytes(); len(data) > 0; {
			n := min(len(data), 52)
			p.line85(data[:n])
			data = data[n:]
		}
		p.w.WriteByte('\n')
	}
}

const digits85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"

func (p *Patcher) line85(data []byte) {
	length := byte('A' + len(data) - 1)
	if len(data) > 26 {
		length = byte('a' + len(data) - 27)
	}
	p.w.WriteByte(length)
	for len(data) > 0 {
		var v uint32
		for i := range 4 {
			v <<= 8
			if i < len(data) {
				v |= uint32(data[i])
			}
		}
		var out [5]byte
		for i := 4; i >= 0; i-- {
			out[i] = digits85[v%85]
			v /= 85
		}
		p.w.Write(out[:])
		data = data[min(4, len(data)):]
	}
	p.w.WriteByte('\n')
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
