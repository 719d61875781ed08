package changes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/agentguard/agentguard/trace"
)

// Change is an entry as a reader sees it.
type Change struct {
	Entry   *Entry
	Op      Op
	Root    string // host path of the tree
	Path    string // below the root; the old one for what was deleted
	OldPath string // where it was, when that is another
	Danger  Danger
	Settled bool // committed or discarded before
}

// Changes lists what was changed, dangerous changes first. Times of change alone
// are left out. settled may be nil.
func (s *Set) Changes(protect []string, settled []bool) []Change {
	var out []Change
	for i := range s.Entries {
		e := &s.Entries[i]
		op := e.Op()
		if op == None || op == Touched {
			continue
		}
		c := Change{Entry: e, Op: op, Root: string(s.RootOf(e).Name), Path: s.Path(e), Danger: s.Danger(e, protect)}
		if old := s.OldPath(e); op == Deleted {
			c.Path = old
		} else if old != c.Path && e.Old != nil || op == Renamed {
			c.OldPath = old
		}
		c.Settled = settled != nil && settled[i]
		out = append(out, c)
	}
	slices.SortStableFunc(out, func(a, b Change) int { return a.rank() - b.rank() })
	return out
}

func (c *Change) rank() int {
	switch {
	case c.Danger.Protected:
		return 0
	case c.Danger.Why != "":
		return 1
	}
	return 2
}

// state is a word for a change that needs no decision any more.
func (c *Change) state() string {
	if c.Settled {
		return "  [settled]"
	}
	return ""
}

func (c *Change) name() string {
	p := c.Path
	if p == "" {
		p = "."
	}
	if n := c.node(); n.Type == Dir {
		p += "/"
	}
	if c.Op == Renamed {
		return trace.Quote(c.OldPath+"/") + " -> " + trace.Quote(p)
	}
	return trace.Quote(p)
}

// node is the side that says what it is.
func (c *Change) node() *Node {
	if c.Entry.New != nil {
		return c.Entry.New
	}
	return c.Entry.Old
}

// WriteText writes changes for a reader: dangerous ones first, with why.
func WriteText(w io.Writer, list []Change) error {
	var b bytes.Buffer
	root, part := "", ""
	for i := range list {
		c := &list[i]
		title := "changes"
		if c.Danger.Why != "" {
			title = "look at these first"
		}
		if c.Root != root || title != part {
			fmt.Fprintf(&b, "%s, %s\n", trace.Quote(c.Root), title)
			root, part = c.Root, title
		}
		fmt.Fprintf(&b, "  %c %s%s%s\n", c.Op, c.name(), c.detail(), c.state())
		if c.Danger.Why != "" {
			hold := ""
			if c.Danger.Protected {
				hold = "; held back unless --include-protected"
			}
			fmt.Fprintf(&b, "      %s%s\n", c.Danger.Why, hold)
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// detail is what a name does not say: sizes, modes, owners, targets.
func (c *Change) detail() string {
	o, n := c.Entry.Old, c.Entry.New
	if c.Op == Renamed {
		o = c.Entry.Base
	}
	var d []string
	add := func(format string, a ...any) { d = append(d, fmt.Sprintf(format, a...)) }
	switch {
	case o == nil:
		if d = describe(n); len(n.Xattrs) > 0 {
			add("attributes")
		}
	case n == nil:
		d = describe(o)
	default:
		if o.Type != n.Type {
			add("%s became %s", o.Type, n.Type)
		}
		if n.Type == File && !sameContent(o, n) {
			if o.Type == File {
				add("%s -> %s", trace.Size(uint64(o.Size)), trace.Size(uint64(n.Size)))
			} else {
				add("%s", trace.Size(uint64(n.Size)))
			}
		}
		if n.Type == Symlink && (o.Type != Symlink || !sameContent(o, n)) {
			add("-> %s", trace.Quote(n.Target))
		}
		if o.Type == n.Type && o.Mode != n.Mode {
			add("mode %04o -> %04o", o.Mode, n.Mode)
		}
		if o.UID != n.UID || o.GID != n.GID {
			add("owner %d:%d -> %d:%d", o.UID, o.GID, n.UID, n.GID)
		}
		if !sameXattrs(o.Xattrs, n.Xattrs) {
			add("attributes")
		}
		if n.Shared {
			add("a hard link")
		}
	}
	if len(d) == 0 {
		return ""
	}
	return "  (" + strings.Join(d, ", ") + ")"
}

func describe(n *Node) []string {
	switch n.Type {
	case File:
		s := trace.Size(uint64(n.Size))
		if n.Mode&0o111 != 0 {
			s += ", executable"
		}
		return []string{s}
	case Symlink:
		return []string{"-> " + trace.Quote(n.Target)}
	case Dir:
		return nil
	}
	return []string{string(n.Type)}
}

// WriteNameStatus writes one change a line as git diff --name-status does.
func WriteNameStatus(w io.Writer, list []Change) error {
	var b bytes.Buffer
	for i := range list {
		c := &list[i]
		if c.Op == Renamed {
			fmt.Fprintf(&b, "R\t%s\t%s\n", trace.Quote(c.OldPath), trace.Quote(c.Path))
		} else {
			fmt.Fprintf(&b, "%c\t%s\n", c.Op, trace.Quote(c.Path))
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// jsonChange is one line of WriteJSON.
type jsonChange struct {
	Op        string `json:"op"`
	Root      string `json:"root"`
	Path      string `json:"path"`
	PathB64   []byte `json:"path_b64,omitempty"`
	From      string `json:"from,omitempty"`
	FromB64   []byte `json:"from_b64,omitempty"`
	Danger    string `json:"danger,omitempty"`
	Protected bool   `json:"protected,omitempty"`
	Settled   bool   `json:"settled,omitempty"`
	Outcome   string `json:"outcome,omitempty"`
	Old       *node  `json:"old,omitempty"`
	New       *node  `json:"new,omitempty"`
}

// WriteJSON writes one change a line.
func WriteJSON(w io.Writer, list []Change) error { return WriteOutcome(w, list, "") }

// WriteOutcome is WriteJSON with what became of the changes, such as "committed".
func WriteOutcome(w io.Writer, list []Change, outcome string) error {
	for i := range list {
		c := &list[i]
		j := jsonChange{
			Op: string(c.Op), Root: strings.ToValidUTF8(c.Root, "\ufffd"), Danger: c.Danger.Why, Protected: c.Danger.Protected, Settled: c.Settled, Outcome: outcome,
			Old: toNode(c.Entry.Old), New: toNode(c.Entry.New),
		}
		j.Path, j.PathB64 = text([]byte(c.Path))
		j.From, j.FromB64 = text([]byte(c.OldPath))
		b, err := json.Marshal(&j)
		if err != nil {
			return err
		}
		if _, err := w.Write(append(trace.EscapeJSON(b), '\n')); err != nil {
			return err
		}
	}
	return nil
}
