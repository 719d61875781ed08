//go:build linux

package initproc

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Will is a list of calls that is made when this process dies, by whatever death:
// a process in a session of its own, which no signal to our group reaches, waits
// for the end of a socket that only we hold, and is then left to itself.
type Will struct {
	pid  int
	sock *os.File
}

// LeaveWill starts the process. The list is made in order up to the first call
// whose result is not the expected one; nobody hears of that. fallback is as
// Config.FallbackExe.
func LeaveWill(calls *Program, fallback string) (*Will, error) {
	ours, theirs, err := socketpair("will")
	if err != nil {
		return nil, err
	}
	exe, err := openProgram(fallback)
	if err != nil {
		return nil, errors.Join(err, ours.Close(), theirs.Close())
	}
	none := ^uintptr(0)
	pid, err := syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", exe.Fd()), []string{"agentguard-will", "list"}, &syscall.ProcAttr{
		Env: []string{}, Files: []uintptr{none, none, none, theirs.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err = errors.Join(err, theirs.Close(), exe.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("the process that outlives this one: %w", err), ours.Close())
	}
	w := &Will{pid: pid, sock: ours}
	list := *calls
	death := &Step{Stage: "will", Label: "read(3): we are dead", nr: unix.SYS_READ, save: noSave, args: [6]Arg{Value(3), list.Bytes(make([]byte, 8)), Value(8)}}
	list.Steps = append([]*Step{death}, list.Steps...)
	if err := send(ours, &list); err != nil {
		return nil, errors.Join(err, w.Revoke())
	}
	return w, nil
}

// Revoke ends the process before it has done anything; twice is once.
func (w *Will) Revoke() error {
	if w == nil || w.pid == 0 {
		return nil
	}
	err := syscall.Kill(w.pid, syscall.SIGKILL) // our child, and not yet waited for: the number is still its own
	for {
		if _, werr := syscall.Wait4(w.pid, nil, 0, nil); werr != syscall.EINTR {
			err = errors.Join(err, werr)
			break
		}
	}
	w.pid = 0
	return errors.Join(err, w.sock.Close())
}
