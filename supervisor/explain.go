package supervisor

import (
	"errors"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	initproc "github.com/agentguard/agentguard/supervisor/init"
	"github.com/agentguard/agentguard/trace"
)

// explain turns the failure of a step of the envelope into a refusal with the
// right exit status.
func (r *Run) explain(err error) error {
	var se *initproc.StepError
	if !errors.As(err, &se) {
		return err
	}
	name := trace.Quote(r.plan.Argv[0])
	switch {
	case se.Step.Stage == "exec" && errors.Is(se.Errno, unix.ENOENT) && r.presentInside() != "":
		return &Refusal{
			Status: StatusNoExec, What: trace.Quote(r.presentInside()) + " is there, but its interpreter or loader is not inside",
			Remedy: "look at its first line, and show what it names with --ro",
		}
	case se.Step.Stage == "exec" && errors.Is(se.Errno, unix.ENOENT):
		return &Refusal{Status: StatusNotFound, What: name + " was not found inside", Remedy: r.whereOnHost()}
	case se.Step.Stage == "exec":
		return &Refusal{Status: StatusNoExec, What: name + " could not be executed", Err: se.Errno, Remedy: execHint(se.Errno)}
	case se.Step.Label == openLabel:
		return &Refusal{What: "this kernel has no overlay file system, which shows a directory copy-on-write", Err: se.Errno, Remedy: "use --mode ro, or --mode rw to write in place"}
	case strings.HasPrefix(se.Step.Label, createLabel):
		return r.lowerRefused(se.Step.Label, se.Errno)
	case se.Step.Want != 0:
		return &Refusal{What: "the canary found a layer that does not bite", Err: err, Remedy: "nothing was run; see agentguard doctor"}
	}
	return &Refusal{What: "the envelope could not be put on", Err: err, Remedy: "nothing was run; see agentguard doctor"}
}

func execHint(errno error) string {
	if errors.Is(errno, unix.ENOEXEC) {
		return "it is neither a program for this machine nor a script with a #! line; name the interpreter"
	}
	return ""
}

// presentInside returns the candidate that a grant or the system shows, or "".
func (r *Run) presentInside() string {
	for _, c := range r.plan.Candidates {
		if !path.IsAbs(c) {
			c = path.Join(r.plan.Dir, c)
		}
		h := holder(r.plan.View, c)
		if h == nil || !h.shows() {
			continue
		}
		var st unix.Stat_t
		rel := strings.TrimPrefix(c, h.At+"/")
		if unix.Fstatat(int(h.open.File.Fd()), rel, &st, 0) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			return c
		}
	}
	return ""
}

// whereOnHost says where the host has the program, and which flag shows it.
func (r *Run) whereOnHost() string {
	var found string
	_ = r.caller.As(func() error {
		found, _ = exec.LookPath(r.plan.Argv[0])
		if found != "" && !path.IsAbs(found) {
			found, _ = filepath.Abs(found)
		}
		return nil
	})
	if found == "" || visible(r.plan.View, found) {
		return "the host does not have it either on this PATH"
	}
	return fmt.Sprintf("the host has it as %s; show its directory with --ro %s", trace.Quote(found), trace.Quote(dirOf(found)))
}
