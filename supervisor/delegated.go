package supervisor

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/internal/outer"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/scope"
	"github.com/agentguard/agentguard/internal/tally"
)

// scopeLimit is how long a start waits for the user's service manager, which takes some
// milliseconds unless it is busy or stuck.
const scopeLimit = 2 * time.Second

// probeDelegated looks for a cgroup that belongs to the user, asks for one where there is
// none, and looks for what there is without.
func (h *Host) probeDelegated() error {
	h.layout = cgroup.Parse(h.mountinfo)
	h.Info.CgroupMode, h.Info.MissingControllers = h.layout.Mode(), []string{cgroup.Memory, cgroup.Pids}
	h.Info.Samples = tally.Supported()
	h.Info.CountsTasks = !h.Info.shared() && h.Info.HiddenProc == "" // its maps are written in the run's own /proc
	p, err := h.delegated()
	if errors.Is(err, cgroup.ErrNotDelegated) || err == nil && p.Shared {
		p, err = h.askScope(p, err)
	}
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return &Refusal{What: "the cgroup that was delegated to this user cannot be used", Err: err, Remedy: "start agentguard in another cgroup"}
	}
	h.parent, h.Info.CgroupDelegated, h.Info.MissingControllers = p, p.Path, p.Missing
	return nil
}

func (h *Host) delegated() (*cgroup.Parent, error) {
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	return h.layout.Delegated(self, outer.Pid())
}

// askScope asks the user's service manager for a scope of our own, and returns the cgroup of
// that, or else what there was without: had, and why it is not more. We go there
// with the process outside, and the scope ends with the last of us.
func (h *Host) askScope(had *cgroup.Parent, why error) (*cgroup.Parent, error) {
	pids := []int{os.Getpid()}
	if pid := outer.Pid(); pid != 0 {
		pids = append(pids, pid)
	}
	err := scope.Ask(os.Getenv("XDG_RUNTIME_DIR"), "agentguard-"+runs.NewID(time.Now()), pids, time.Now().Add(scopeLimit))
	if err != nil {
		h.Info.NoScope = err.Error()
		return had, why
	}
	if had != nil { // another cgroup is ours from here on
		if err := had.Leave(); err != nil {
			return nil, err
		}
	}
	p, err := h.delegated()
	if err == nil {
		p.Ends = true
	}
	if errors.Is(err, cgroup.ErrNotDelegated) {
		h.Info.NoScope = fmt.Sprintf("it says that it has made one, and this process is elsewhere: %v", err)
	}
	return p, err
}
