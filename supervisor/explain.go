package supervisor

import (
	"errors"
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
	if se.Step.Label == restrictLabel && errors.Is(se.Errno, unix.E2BIG) {
		return tooManyLayers(se)
	}
	name := trace.Quote(r.plan.Argv[0])
	switch {
	case se.Step.Stage == "exec" && errors.Is(se.Errno, unix.ENOENT):
		return r.notFound()
	case se.Step.Stage == "exec":
		return &Refusal{Status: StatusNoExec, What: name + " could not be executed", Err: se.Errno, Remedy: r.execHint(se.Errno)}
	case se.Step.Label == pivotLabel && errors.Is(se.Errno, unix.EINVAL):
		return &Refusal{What: "the root of this system is an initramfs, from which nothing can pivot", Err: err, Remedy: "start the system from a disk or a tmpfs (switch_root); nothing was run"}
	case se.Step.Label == openLabel:
		return &Refusal{What: "this kernel has no overlay file system, which shows a directory copy-on-write", Err: se.Errno, Remedy: "use --mode ro, or --mode rw to write in place"}
	case strings.HasPrefix(se.Step.Label, createLabel):
		return r.lowerRefused(se.Step.Label, se.Errno)
	case se.Step.Stage == tasksStage:
		return &Refusal{
			What: "the command cannot have the user namespace in which its tasks are counted", Err: err, Clause: clauseTasks,
			Remedy: "nothing was run; a greater user.max_user_namespaces, --pids none, or " + helperRemedy,
		}
	case se.Step.Label == loSocketLabel && errors.Is(se.Errno, unix.EPERM):
		return &Refusal{
			What: "a program that is not of this agentguard's guards the cgroup of all runs, and refuses sockets in it", Err: se,
			Remedy: "nothing was run; another agentguard, in a container or a mount namespace, has the same cgroup tree and another /run/agentguard: end it, or let both have one /run/agentguard, or each a cgroup tree",
		}
	case se.Step.Want != 0:
		return &Refusal{What: "the canary found a layer that does not bite", Err: err, Remedy: "nothing was run; see agentguard doctor"}
	}
	return &Refusal{What: "the envelope could not be put on", Err: err, Remedy: "nothing was run; see agentguard doctor"}
}

// pivotLabel is the step after which the host's root is out of sight.
const pivotLabel = "pivot_root(., .)"
