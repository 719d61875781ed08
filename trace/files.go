package trace

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// files shows, for each path that the command named, what it did with it.
type files struct {
	whole  bool
	at     map[string]*file
	bytes  int
	total  uint64
	hidden uint64 // acts on paths that were not kept
}

type file struct {
	path  string // quoted
	acts  uint32 // bits of fileActs
	count uint64
}

// topFiles is how many paths a view that was not asked for all of them shows.
const topFiles = 20

// fileActs are the words for what was done with a file. The bits of file.acts
// count from the first.
var fileActs = [...]string{
	"read", "write", "use", "create", "mkdir", "delete", "rename", "link", "truncate",
	"chmod", "chown", "setxattr", "refused",
}

// fileWord returns the word for an event on a file; "" for any other.
func fileWord(e *Event) string {
	switch e.Kind {
	case KindOpen:
		switch e.Access {
		case "w", "rw":
			return "write"
		case "r":
			return "read"
		}
		return "use"
	case KindUnlink:
		return "delete"
	case KindCreate, KindMkdir, KindRename, KindLink, KindTruncate, KindChmod, KindChown, KindSetxattr:
		return string(e.Kind)
	}
	return ""
}

func newFiles(whole bool) *files { return &files{whole: whole, at: map[string]*file{}} }

func (f *files) add(e *Event) {
	word := fileWord(e)
	if word == "" || e.Phase == PhaseEnvelope || e.Errno != 0 && !e.Denied() {
		return
	}
	if e.Denied() {
		word = "refused"
	}
	f.total += e.Times()
	f.act(Object(e), word, e)
	if len(e.To) > 0 {
		f.act(Quote(e.To[:min(len(e.To), maxShown)]), word, e)
	}
}

func (f *files) act(path, word string, e *Event) {
	one := f.at[path]
	if one == nil {
		if f.bytes += len(path); f.bytes > maxViewBytes {
			f.hidden += e.Times()
			return
		}
		one = &file{path: path}
		f.at[path] = one
	}
	one.acts |= 1 << slices.Index(fileActs[:], word)
	one.count += e.Times()
}

// words lists what was done with the file.
func (f *file) words() string {
	var s []string
	for i, w := range fileActs {
		if f.acts&(1<<i) != 0 {
			s = append(s, w)
		}
	}
	return strings.Join(s, ", ")
}

// write prints the paths in their order when all are shown, else those that
// were used most.
func (f *files) write(w io.Writer, _ *Report) {
	writeHeading(w, "files", f.total)
	list := make([]*file, 0, len(f.at))
	for _, one := range f.at {
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b *file) int {
		if f.whole {
			return cmp.Compare(a.path, b.path)
		}
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.path, b.path))
	})
	top := len(list)
	if !f.whole {
		top = min(top, topFiles)
	}
	for _, one := range list[:top] {
		fmt.Fprintf(w, "  %7d  %s  %s\n", one.count, one.path, one.words())
	}
	if n := len(list) - top; n > 0 {
		fmt.Fprintf(w, "  (%d more paths: trace files)\n", n)
	}
	if f.hidden > 0 {
		fmt.Fprintf(w, "  %7d  acts on further paths\n", f.hidden)
	}
}
