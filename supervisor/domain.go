package supervisor

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lostthread"
	"github.com/agentguard/agentguard/landlock"
	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// domain is a thread of ours in the Landlock domain that lets no signal out, and in which
// the guardian of a run without namespaces is born, and all of the run after it. The guardian
// ends the run by one kill(-1). Somebody of the same user may kill the guardian; then
// this thread says the same.
//
//	supervisor --- its thread in the domain --- guardian --- command, daemons
//	                 kill(-1) reaches these:    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
//
// The other threads are outside: signals to the supervisor go by its first thread.
type domain struct{ work chan func() }

// enterDomain makes one (ABI 6, Linux 6.12).
func enterDomain(abi int) (*domain, error) {
	scope, err := landlock.SignalScope()
	if err != nil {
		return nil, err
	}
	defer scope.Close()
	d, entered := &domain{work: make(chan func())}, make(chan error)
	go func() { // until leave
		_ = lostthread.Run(func() error {
			err := restrictThread(scope, abi)
			if entered <- err; err != nil {
				return err
			}
			for work := range d.work {
				work()
			}
			return nil
		}) // told by entered
	}()
	if err := <-entered; err != nil {
		return nil, err
	}
	return d, nil
}

func restrictThread(scope *os.File, abi int) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	_, _, errno := unix.Syscall(landlock.SysRestrictSelf, scope.Fd(), uintptr(landlock.RestrictFlags(abi)), 0)
	switch {
	case errno == unix.E2BIG:
		return tooManyLayers(errno)
	case errno != 0:
		return os.NewSyscallError("landlock_restrict_self", errno)
	}
	return nil
}

// start is initproc.Start, of a process in the domain.
func (d *domain) start(cfg initproc.Config) (p *initproc.Process, err error) {
	d.do(func() { p, err = initproc.Start(cfg) })
	return p, err
}

// kill ends every process that was born in the domain, however fast they fork. That no other is
// reached was shown when the guardian was born: it tried to signal us (before in init.c).
func (d *domain) kill() (err error) {
	d.do(func() { err = unix.Kill(-1, unix.SIGKILL) })
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing what a guardian has left: %w", err)
	}
	return nil
}

func (d *domain) do(work func()) {
	done := make(chan struct{})
	d.work <- func() {
		defer close(done)
		work()
	}
	<-done
}

// leave ends the thread.
func (d *domain) leave() error {
	close(d.work)
	return nil
}

// orphansLimit bounds how long the ends of killed processes are waited for: their new parent may
// never take them.
const orphansLimit = 5 * time.Second

// endOrphans ends what a guardian has left that was killed. The guardian was waited for.
func (r *Run) endOrphans() error {
	if r.domain == nil || !r.proc.Killed {
		return nil
	}
	r.orphaned = true
	err := r.domain.kill()
	r.left = !r.asked.emptied(orphansLimit) || err != nil
	return err
}

// orphanFindings say that it was so. How the command would have ended is not known.
func (r *Run) orphanFindings() []string {
	if !r.orphaned {
		return nil
	}
	const killed = "the guardian of the run was killed from outside: "
	if r.left {
		return []string{killed + "the supervisor has killed the rest, but does not know whether all of it has ended"}
	}
	return []string{killed + "the supervisor has ended the rest"}
}
