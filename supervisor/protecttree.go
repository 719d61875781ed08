package supervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/trace"
)

// Without mounts nothing makes a protected directory read-only, and all below it is compared when the run has ended.

// Bounds of that, of all trees of a run together. Beyond them it is said that nothing was compared.
const (
	maxCompared = 4096 // names
	maxDeep     = 32   // directories in directories
	maxPlanted  = 50   // lines of one tree
)

// guardedTree is a directory that is compared with all that is below it.
type guardedTree struct {
	outer  *Opened
	from   string // the host's path of outer, for people
	rel    string
	before map[string]version // by path below it
	whole  bool               // before has all there was
}

// version tells a file from another with its name, and from itself before it was changed: who can set a
// ctime can set the clock.
type version struct {
	ino   uint64
	mode  uint32
	ctime unix.Timespec // 0 of a directory: what was changed in it is told by itself
}

// watchGuards has what would be read-only compared after the run.
func (g *grants) watchGuards() {
	left := maxCompared
	for i := range g.entries {
		e := &g.entries[i]
		outer := holder(g.entries, e.At)
		if !e.guard || outer == nil {
			continue
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(e.At, outer.At), "/")
		g.watch(outer, rel)
		if e.open.Stat.Mode&unix.S_IFMT == unix.S_IFDIR {
			t := guardedTree{outer: outer.open, from: outer.From, rel: rel}
			t.before, t.whole = t.look(&left)
			g.trees = append(g.trees, t)
		}
	}
}

// look lists what is below the directory now; whole: all of it. What cannot be listed is not whole: a directory
// that is not there, or no directory, has nothing below it.
func (t *guardedTree) look(left *int) (found map[string]version, whole bool) {
	found = map[string]version{}
	fd, err := openInside(t.outer.File, t.rel)
	if err != nil {
		return found, true // the path itself is compared, too
	}
	defer unix.Close(fd)
	return found, lookBelow(fd, "", found, left, maxDeep)
}

func lookBelow(dir int, at string, found map[string]version, left *int, deep int) (whole bool) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err == unix.ENOTDIR || err == unix.ENOENT
	}
	f := os.NewFile(uintptr(fd), at)
	defer f.Close()
	whole = true
	for {
		names, err := f.Readdirnames(256)
		slices.Sort(names) // what is within the bound is then the same twice, of small directories
		for _, name := range names {
			if *left == 0 {
				return false
			}
			*left--
			if !lookAt(fd, at, name, found, left, deep) {
				whole = false
			}
		}
		if err != nil || len(names) == 0 {
			return whole && (err == nil || errors.Is(err, io.EOF))
		}
	}
}

func lookAt(dir int, at, name string, found map[string]version, left *int, deep int) (whole bool) {
	var st unix.Stat_t
	if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return true // it is gone
	}
	v := version{st.Ino, st.Mode, st.Ctim}
	at = path.Join(at, name)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		found[at] = v
		return true
	}
	v.ctime = unix.Timespec{}
	found[at] = v
	if deep == 0 {
		return false
	}
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return lookBelow(fd, at, found, left, deep-1)
}

// planted lists what is not as it was; of what was made or removed with its directory only that.
func (t *guardedTree) planted(left *int) []string {
	now, whole := t.look(left)
	var out []string
	add := func(name, what string) {
		out = append(out, trace.Quote(path.Join(t.from, t.rel, name))+" "+what)
	}
	for _, name := range sortedKeys(now) {
		before, was := t.before[name]
		_, holderWas := t.before[path.Dir(name)]
		switch {
		case !was && (holderWas || path.Dir(name) == ".") && t.whole:
			add(name, "was made")
		case was && before != now[name]:
			add(name, "was changed")
		}
	}
	for _, name := range sortedKeys(t.before) {
		_, is := now[name]
		holder, top := now[path.Dir(name)], path.Dir(name) == "."
		if !is && (top || holder.mode&unix.S_IFMT == unix.S_IFDIR) && whole {
			add(name, "was removed")
		}
	}
	if n := len(out); n > maxPlanted {
		out = append(out[:maxPlanted], fmt.Sprintf("%s: and %d more below it", trace.Quote(path.Join(t.from, t.rel)), n-maxPlanted))
	}
	if !t.whole || !whole {
		out = append(out, fmt.Sprintf("%s was not compared as a whole: there is more below it than %d names, deeper than %d directories, or not readable", trace.Quote(path.Join(t.from, t.rel)), maxCompared, maxDeep))
	}
	return out
}
