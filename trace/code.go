package trace

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// code shows what was executed: each version of a file once, with its digest
// where the record has one, and how often it was executed or mapped. A mapping
// has no digest of its own: the code record of the same file has.
type code struct {
	whole  bool
	rows   []*codeRow
	byWhat map[string]*codeRow // by digest and path
	byFile map[fileID]*codeRow // the latest version
	images map[uint32]string   // by process: what it executed last, quoted
	bytes  int
	hidden uint64
}

// fileID identifies a file of one host.
type fileID struct {
	major, minor uint32
	ino          uint64
}

type codeRow struct {
	digest string // or why there is none
	what   string // quoted path, and what is odd about it
	ways   uint8  // bits of codeWays
	count  uint64
}

var codeWays = [...]string{"exec", "map"}

func newCode(whole bool) *code {
	return &code{whole: whole, byWhat: map[string]*codeRow{}, byFile: map[fileID]*codeRow{}, images: map[uint32]string{}}
}

func runsCode(e *Event) bool {
	return (e.Kind == KindExec || e.Kind == KindMmapExec || e.Kind == KindCode) && e.Phase != PhaseEnvelope
}

func (c *code) add(e *Event) {
	if !runsCode(e) || e.Errno != 0 {
		return
	}
	id := fileID{e.DevMajor, e.DevMinor, e.Ino}
	row := c.byFile[id]
	switch {
	case e.Ino == 0 || row == nil || row.digest != "" && digestOf(e) != "" && row.digest != digestOf(e):
		row = c.row(e)
	case row.digest == "":
		row.digest = digestOf(e)
	}
	if row == nil {
		c.hidden += e.Times()
		return
	}
	if e.Ino != 0 {
		c.byFile[id] = row
	}
	switch e.Kind {
	case KindExec:
		row.ways |= 1
		c.image(e)
	case KindMmapExec:
		row.ways |= 2
	default:
		return
	}
	row.count += e.Times()
}

// maxImages bounds for how many processes their image is remembered.
const maxImages = 4096

func (c *code) image(e *Event) {
	if len(c.images) >= maxImages {
		clear(c.images)
	}
	c.images[e.Proc.Pid] = Object(e)
}

// row finds or makes the row of a file that is known by digest and path only;
// nil when there is no room.
func (c *code) row(e *Event) *codeRow {
	what := codeObject(e)
	if e.Anon && len(e.Path) == 0 { // no file says what it holds, so at least whose it is
		what += ", of process " + strconv.FormatUint(uint64(e.Proc.Pid), 10) + " " + cmp.Or(c.images[e.Proc.Pid], "-")
	}
	key := digestOf(e) + " " + what
	if row := c.byWhat[key]; row != nil {
		return row
	}
	if c.bytes += len(key); c.bytes > maxViewBytes {
		return nil
	}
	row := &codeRow{digest: digestOf(e), what: what}
	c.byWhat[key], c.rows = row, append(c.rows, row)
	return row
}

// digestOf is the digest of what was executed, or why there is none, or "".
func digestOf(e *Event) string {
	if e.SHA256 == "" && e.HashState != "" {
		return "(" + Line(e.HashState) + ")"
	}
	return Line(e.SHA256)
}

func codeObject(e *Event) string {
	if len(e.Path) == 0 && e.Kind == KindCode {
		return "text given to an interpreter"
	}
	if e.Anon && len(e.Path) == 0 {
		return "memory of no file"
	}
	return cmp.Or(Object(e), "?") + oddities(e)
}

// codeLine renders one executed file for a comparison of runs.
func codeLine(e *Event) string {
	switch e.Kind {
	case KindExec:
		return "exec " + codeObject(e)
	case KindMmapExec:
		return "map " + codeObject(e)
	}
	return "content " + digestOf(e) + " " + codeObject(e)
}

// oddities says what a path alone hides.
func oddities(e *Event) string {
	switch {
	case e.Memfd:
		return " (anonymous memory)"
	case e.Anon && len(e.Path) == 0:
		return " memory of no file"
	case e.Anon:
		return " (changed in memory)"
	case e.Deleted:
		return " (deleted)"
	}
	return ""
}

func (c *code) write(w io.Writer, _ *Report) {
	writeHeading(w, "code", uint64(len(c.rows)))
	top := len(c.rows)
	if !c.whole {
		top = min(top, topFiles)
	}
	for _, r := range c.rows[:top] {
		var ways []string
		for i, name := range codeWays {
			if r.ways&(1<<i) != 0 {
				ways = append(ways, name)
			}
		}
		fmt.Fprintf(w, "  %7d  %-64s  %s  %s\n", r.count, cmp.Or(r.digest, "-"), r.what, cmp.Or(strings.Join(ways, ", "), "content"))
	}
	if n := len(c.rows) - top; n > 0 {
		fmt.Fprintf(w, "  (%d more: trace code)\n", n)
	}
	if c.hidden > 0 {
		fmt.Fprintf(w, "  %7d  others\n", c.hidden)
	}
}
