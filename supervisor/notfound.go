package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/toolchain"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"
)

// notFound says why execve found nothing: the program is not inside, or is a
// link that leads out, or what it needs to start is not inside.
func (r *Run) notFound() *Refusal {
	var ref *Refusal
	_ = r.caller.As(func() error {
		ref = r.missing()
		return nil
	})
	return ref
}

// missing looks at the host as the caller.
func (r *Run) missing() *Refusal {
	h, present := r.presentInside(r.plan.Candidates)
	if h == nil {
		return &Refusal{Status: StatusNotFound, What: trace.Quote(r.plan.Argv[0]) + " was not found inside", Remedy: r.whereOnHost()}
	}
	if real, err := filepath.EvalSymlinks(present); err == nil && !within(real, h.From) && !visible(r.plan.View, real) {
		return &Refusal{
			Status: StatusNotFound, What: fmt.Sprintf("%s is a link to %s, which is not inside", trace.Quote(present), trace.Quote(real)),
			Remedy: showFlag(real),
		}
	}
	ref := &Refusal{
		Status: StatusNoExec, What: trace.Quote(present) + " is there, but its interpreter or loader is not inside",
		Remedy: "look at its first line, and show what it names with --ro",
	}
	if interpreter := shebang(present); interpreter != "" {
		ref.What = fmt.Sprintf("%s is there, but its interpreter %s is not inside", trace.Quote(present), trace.Quote(interpreter))
		ref.Remedy = "this host does not have it either"
		if real, err := filepath.EvalSymlinks(interpreter); err == nil {
			ref.Remedy = showFlag(real)
		}
	}
	return ref
}

// execHint says what a program that is there lacks.
func (r *Run) execHint(errno error) (hint string) {
	if errors.Is(errno, unix.ENOEXEC) {
		return "it is neither a program for this machine nor a script with a #! line; name the interpreter"
	}
	if !errors.Is(errno, unix.EACCES) {
		return ""
	}
	_ = r.caller.As(func() error {
		p := r.plan.Argv[0]
		if h, present := r.presentInside(r.plan.Candidates); h != nil {
			p = present
		}
		switch st, err := os.Stat(p); {
		case err != nil:
		case st.IsDir():
			hint = "it is a directory"
		case st.Mode()&0o111 == 0:
			hint = "it is not marked executable: chmod +x, or name its interpreter"
		}
		return nil
	})
	return hint
}

// shebang is the interpreter that a script's first line names, as the kernel
// takes it: at most 256 bytes, one word after "#!" (execve(2)).
func shebang(script string) string {
	f, err := os.OpenFile(script, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	line, _ := bufio.NewReader(io.LimitReader(f, 256)).ReadString('\n') // a first line may be the last
	rest, ok := strings.CutPrefix(line, "#!")
	fields := strings.Fields(rest)
	if !ok || len(fields) == 0 || !path.IsAbs(fields[0]) {
		return ""
	}
	return fields[0]
}

// presentInside returns the host's path of the candidate that a grant or the
// system shows, and what shows it; nil when none does.
func (r *Run) presentInside(places []string) (*Entry, string) {
	for _, c := range places {
		if !path.IsAbs(c) {
			c = path.Join(r.plan.Dir, c)
		}
		h := holder(r.plan.View, path.Clean(c))
		if h == nil || !h.shows() {
			continue
		}
		at := path.Join(h.From, strings.TrimPrefix(path.Clean(c), h.At+"/"))
		if st, err := os.Stat(at); err == nil && st.Mode().IsRegular() {
			return h, at
		}
	}
	return nil, ""
}

// whereOnHost says where the host has the program, and which flag shows it.
func (r *Run) whereOnHost() string {
	name := r.plan.Argv[0]
	switch at, also := r.onHost(name); {
	case at != "":
		return "the host has it as " + trace.Quote(at) + also + "; " + showFlag(at)
	case strings.Contains(name, "/"):
		return "the host does not have it either"
	}
	return "the host does not have it either on this PATH"
}

// onHost says where the host has a program that the run does not show, and what else
// is to be known about that place; the calling thread acts for the caller.
func (r *Run) onHost(name string) (at, also string) {
	env := func(name string) string { return lookupEnv(r.cfg.Environ, name) }
	for _, c := range r.hostCandidates(name, env("PATH")) {
		if isExecutable(c) && !visible(r.plan.View, c) {
			return c, ""
		}
	}
	if strings.Contains(name, "/") {
		return "", ""
	}
	for _, dir := range toolchain.UsualDirs(r.caller.Home(env)) {
		if c := path.Join(dir, name); isExecutable(c) && !visible(r.plan.View, c) {
			return c, ", which is not on this PATH"
		}
	}
	return "", ""
}

// hostCandidates are where the caller would find a program.
func (r *Run) hostCandidates(name, callersPath string) []string {
	if strings.Contains(name, "/") {
		if !path.IsAbs(name) {
			name, _ = filepath.Abs(name)
		}
		return []string{name}
	}
	var out []string
	for _, dir := range strings.Split(callersPath, ":") {
		if path.IsAbs(dir) {
			out = append(out, path.Join(dir, name))
		}
	}
	return out
}

// isExecutable reports a program that the calling thread may execute.
func isExecutable(p string) bool {
	st, err := os.Stat(p)
	return err == nil && st.Mode().IsRegular() && unix.Faccessat2(unix.AT_FDCWD, p, unix.X_OK, unix.AT_EACCESS) == nil
}

// showFlag is the flag that shows a program of the host: its toolchain, or where
// the directory holds much else the program alone.
func showFlag(program string) string {
	real, err := filepath.EvalSymlinks(program)
	switch dir := path.Dir(program); {
	case err == nil && path.Base(real) == "snap":
		return "a snap starts through a set-user-id program, which no run may use: install it in another way"
	case policy.BroadMount(dir, false) != "" || len(split(dir)) < 2:
		return "show it with --ro " + trace.Quote(program)
	default:
		return "show it with --toolchains " + trace.Quote(dir)
	}
}
