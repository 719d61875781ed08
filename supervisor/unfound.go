package supervisor

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/trace"
)

// unfound collects the programs that processes of the run tried to execute in
// directories of PATH, as execvp(3) does, and did not find.
type unfound struct {
	dirs   []string          // of PATH
	trying map[uint32]string // by process: what it tried last, in vain
	names  []string
}

// maxUnfound bounds the names that are kept, and the processes that are looked at.
const maxUnfound = 64

// tried notes an execve that found no file.
func (u *unfound) tried(e *trace.Event) {
	dir, name := path.Split(string(e.Path))
	if e.Phase != trace.PhaseCommand || !slices.Contains(u.dirs, path.Clean(dir)) {
		return
	}
	if u.trying[e.Proc.Pid] != name {
		u.leave(e.Proc.Pid, "")
	}
	if u.trying == nil {
		u.trying = map[uint32]string{}
	}
	if len(u.trying) < maxUnfound {
		u.trying[e.Proc.Pid] = name
	}
}

// leave ends what a process tries: it has executed a file, or has ended.
func (u *unfound) leave(pid uint32, executed string) {
	name, trying := u.trying[pid]
	if !trying {
		return
	}
	delete(u.trying, pid)
	if name != path.Base(executed) {
		u.add(name)
	}
}

func (u *unfound) add(name string) {
	if len(u.names) < maxUnfound && !slices.Contains(u.names, name) {
		u.names = append(u.names, name)
	}
}

// all are the names that were not found.
func (u *unfound) all() []string {
	for pid := range u.trying {
		u.leave(pid, "")
	}
	return u.names
}

// places are where the run's PATH has a program of that name.
func (u *unfound) places(name string) []string {
	var out []string
	for _, dir := range u.dirs {
		out = append(out, path.Join(dir, name))
	}
	return out
}

// tailOf is how much of the output's end is looked at for what shells said.
const tailOf = 64 << 10

// tellMissing says of a run that failed which programs it did not find, and where the
// host has them. Shells look for a program with stat(2), which is not recorded: its
// name then is the one in the shell's own message. That is the command's word, and
// decides only what is looked for; what is told are facts of the view and of the host.
func (r *Run) tellMissing(res *runs.Result) {
	if res.Status == 0 {
		return
	}
	names := r.rec.unfound.all()
	for _, file := range []string{runs.StderrFile, runs.StdoutFile} {
		text, err := r.tail(file)
		if err != nil {
			r.cfg.Log.Error().Err(err).Msg("output")
		}
		for _, name := range shellNames(text) {
			if len(names) < maxUnfound && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return
	}
	_ = r.caller.As(func() error {
		for _, name := range names {
			if h, _ := r.presentInside(r.rec.unfound.places(name)); h != nil {
				continue // it is not in the PATH that it was looked for in
			}
			if at, also := r.onHost(name); at != "" {
				res.Missing = append(res.Missing, runs.Missing{Name: trace.Quote(name), Host: trace.Quote(at) + also, Remedy: showFlag(at)})
			}
		}
		return nil
	})
}

// tail returns the end of a recorded stream.
func (r *Run) tail(name string) ([]byte, error) {
	f, err := r.dir.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, max(0, st.Size()-tailOf), tailOf))
}

// messages are what shells and make print: before the name of a program that they have
// not found, and after it.
var messages = []struct{ start, before, after string }{
	{"", ": ", ": not found"},                     // dash, busybox
	{"", ": ", ": command not found"},             // bash
	{"", ": command not found: ", ""},             // zsh
	{"", ": Unknown command: ", ""},               // fish
	{"make", ": ", ": No such file or directory"}, // GNU make 4.3
	{"make", ": ", ": Command not found"},         // and before
}

// shellNames are the programs that shells say they have not found.
func shellNames(text []byte) []string {
	var out []string
	for line := range bytes.Lines(text) {
		s := strings.TrimRight(string(line), "\r\n")
		for _, m := range messages {
			rest, said := strings.CutSuffix(s, m.after)
			i := strings.LastIndex(rest, m.before)
			if !said || i < 0 || !strings.HasPrefix(s, m.start) {
				continue
			}
			if name := rest[i+len(m.before):]; isName(name) && len(out) < maxUnfound {
				out = append(out, name)
			}
			break
		}
	}
	return out
}

// maxName is NAME_MAX (limits.h): no file has a longer name.
const maxName = 255

// isName reports a word that a program may have for a name, and that is to be looked
// for in PATH.
func isName(s string) bool {
	odd := func(c rune) bool { return c <= ' ' || c == '/' || c == '\'' || c == '"' || c == 0x7f }
	return s != "" && len(s) <= maxName && strings.IndexFunc(s, odd) < 0
}
