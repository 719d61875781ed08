//go:build linux

package initproc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Config is what a run's first process is born with.
type Config struct {
	Cgroup *os.File // leaf of the run, for CLONE_INTO_CGROUP (5.7); nil: born in the caller's cgroup
	Flags  uintptr  // CLONE_NEW* flags

	Stdin, Stdout, Stderr *os.File // what the command gets as 0, 1 and 2

	// Terminal makes Stdin the controlling terminal of PID 1's session, before the
	// command is born: who is there already would not get it (TIOCSCTTY, ioctl_tty(2)).
	Terminal bool

	// Guardian is PID 1's own lockdown. It is queued before the process
	// exists, so that PID 1 never waits for it.
	Guardian *Program

	// Keep is for a run without a PID namespace. Its guardian makes the plan Before
	// ahead of the command's birth: what it is to inherit, and [Keep.Adopt].
	Keep   Keep
	Before *Program

	// Stopped is called by [Process.Wait] with the signal each time that the command
	// was stopped (WUNTRACED of wait4(2)); nil: nobody asks.
	Stopped func(syscall.Signal)

	// FallbackExe is where the init program is written when memfds must not
	// be executed (vm.memfd_noexec=2, 6.3). The directory must belong to root.
	FallbackExe string
}

// Process is a born run: PID 1, and PID 2 which waits for its plan.
type Process struct {
	Pid     int // of PID 1, in the caller's PID namespace
	PidFD   *os.File
	Command *os.File // pidfd of PID 2, the command; set by Locked
	Killed  bool     // PID 1 was ended by a signal; set by Reap

	control, errors, life *os.File
	before, plan          *Program
	keep                  Keep
	urged                 sync.Once
	stopped               func(syscall.Signal)
}

// Exit is how the command ended, as PID 1 collected it with wait4(2).
type Exit struct {
	Status       syscall.WaitStatus // of the command itself
	User, System time.Duration      // of the command and the children that it waited for
}

// StepError says which system call of a plan did not do what it must.
type StepError struct {
	Step  *Step
	Errno syscall.Errno // the errno that came; ERANGE when a probe succeeded that must fail
	Who   string        // "pid 1" or "command"
}

// Error describes the call and its errno.
func (e *StepError) Error() string {
	if e.Step.Want != 0 {
		if e.Errno == unix.ERANGE {
			return fmt.Sprintf("%s: %s was allowed, and must be refused", e.Step.Stage, e.Step.Label)
		}
		return fmt.Sprintf("%s: %s failed with %v, and must fail with %v", e.Step.Stage, e.Step.Label, e.Errno, syscall.Errno(e.Step.Want))
	}
	return fmt.Sprintf("%s: %s: %v", e.Step.Stage, e.Step.Label, e.Errno)
}

// Unwrap returns the errno.
func (e *StepError) Unwrap() error { return e.Errno }

// ErrDied is returned when PID 1 or the command died before execve without a
// report: it was killed from outside, or a probe met a filter that kills.
var ErrDied = errors.New("the process died before it could start the command")

// BirthError is that a process of the run's could not be made. Err is the errno; that of PID 2, which
// PID 1 makes and has no words for, is taken to be EAGAIN: memory for a process that small is there.
type BirthError struct {
	What string // which process, and by which call
	Err  error  // an errno
}

func (e *BirthError) Error() string { return e.What + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *BirthError) Unwrap() error { return e.Err }

// execBase is the lowest descriptor number for the program's memfd: above
// every number that fork's dup2 may write to.
const execBase = 200

// Start clones PID 1, which at once clones PID 2. It returns as soon as both
// can exist; [Process.Locked] waits until PID 1 has given up its privileges.
func Start(cfg Config) (*Process, error) {
	p := &Process{stopped: cfg.Stopped, keep: cfg.Keep, before: cfg.Before, plan: cfg.Guardian}
	var ctl, life *os.File // init's ends
	var exe *os.File
	var err error
	defer func() {
		for _, f := range []*os.File{ctl, life, exe} {
			closeFile(f)
		}
	}()
	if p.control, ctl, err = socketpair("control"); err != nil {
		return nil, err
	}
	if p.life, life, err = socketpair("lifeline"); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	var report *os.File
	if p.errors, report, err = os.Pipe(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	defer report.Close()
	if exe, err = openProgram(cfg.FallbackExe); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if cfg.Keep != KeepNamespace {
		if err = send(p.life, cfg.Before); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	if err = send(p.life, cfg.Guardian); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	files := []*os.File{cfg.Stdin, cfg.Stdout, cfg.Stderr, ctl, report, life}
	if err = p.clone(cfg, exe, files); err != nil {
		return nil, errors.Join(&BirthError{"clone3 of the run's first process", err}, p.Close())
	}
	return p, nil
}

func (p *Process) clone(cfg Config, exe *os.File, files []*os.File) error {
	attr := &syscall.ProcAttr{Env: []string{}, Sys: &syscall.SysProcAttr{
		Cloneflags: cfg.Flags, Setsid: true, Setctty: cfg.Terminal, PidFD: new(int), // Ctty is 0
	}}
	for _, f := range files {
		attr.Files = append(attr.Files, f.Fd())
	}
	if cfg.Cgroup != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(cfg.Cgroup.Fd())
	}
	pid, err := syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", exe.Fd()), cfg.Keep.argv(), attr)
	runtime.KeepAlive(cfg.Cgroup) // a collected File would close the descriptor under clone3
	runtime.KeepAlive(files)
	runtime.KeepAlive(exe)
	if err != nil {
		return err
	}
	p.Pid = pid
	if *attr.Sys.PidFD >= 0 {
		p.PidFD = os.NewFile(uintptr(*attr.Sys.PidFD), "pidfd of PID 1")
	}
	return nil
}

// Locked waits until PID 1 has locked itself down and receives the command's
// pidfd. Until then the command's plan must not be sent: the command could
// meet a PID 1 that still has privileges.
func (p *Process) Locked(limit time.Duration) error {
	if err := p.life.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	for {
		m, fd, err := p.receive()
		switch {
		case err == io.EOF || errors.Is(err, unix.ECONNRESET): // the latter where it has not read its plan
			if p.Command == nil && !p.killed() {
				return &BirthError{"clone of the run's second process by the first, which has ended", unix.EAGAIN}
			}
			return ErrDied
		case err != nil:
			return fmt.Errorf("waiting for PID 1: %w", err)
		case m.kind == msgChild && fd >= 0 && p.Command == nil:
			p.Command = os.NewFile(uintptr(fd), "pidfd of the command")
			continue
		case m.kind == msgStop:
			continue
		case m.kind == msgLocked && p.Command != nil:
			return p.life.SetReadDeadline(time.Time{})
		case m.kind == msgFail:
			return p.guardianError(m)
		case m.kind == msgExit:
			return ErrDied
		}
		return fmt.Errorf("PID 1 sent message %d out of order", m.kind)
	}
}

// killed waits for the end of PID 1 and reports whether that was by a signal. It is left to [Process.Reap].
func (p *Process) killed() bool {
	const cldExited = 1 // CLD_EXITED of siginfo(2)
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, p.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err == nil && info.Code != cldExited
		}
	}
}

// guardianError says which call of the guardian's plans has failed.
func (p *Process) guardianError(m message) error {
	plan := p.plan
	if m.detail[1] == 1 {
		plan = p.before
		if m.detail[0] == math.MaxUint32 {
			return errors.New("the guardian could send signals outside of the run: its Landlock domain does not bite")
		}
	}
	if m.detail[0] >= uint64(len(plan.Steps)) {
		return fmt.Errorf("PID 1 failed at a call %d that no plan of its has", m.detail[0])
	}
	return &StepError{Step: plan.Steps[m.detail[0]], Errno: syscall.Errno(-m.value), Who: "pid 1"}
}

// Alive reports whether PID 1 and PID 2 are there.
func (p *Process) Alive() bool {
	fds := []unix.PollFd{{Fd: int32(p.PidFD.Fd()), Events: unix.POLLIN}, {Fd: int32(p.Command.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0) // a pidfd can be read from when its process has ended (pidfd_open(2))
	return n == 0 && err == nil
}

// Exec sends the command's plan and waits for execve. It returns nil when the
// command runs, a *StepError when a call failed, ErrDied when the process was
// killed on the way.
func (p *Process) Exec(plan *Program, limit time.Duration) error {
	if err := send(p.control, plan); err != nil {
		return fmt.Errorf("sending the plan: %w", err)
	}
	if err := p.control.Close(); err != nil {
		return err
	}
	p.control = nil
	if err := p.errors.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	ready := false
	for {
		var b [12]byte
		if _, err := io.ReadFull(p.errors, b[:]); err == io.EOF && ready {
			return nil // close-on-exec closed the pipe: execve has happened
		} else if err == io.EOF {
			return ErrDied
		} else if err != nil {
			return fmt.Errorf("waiting for execve: %w", err)
		}
		kind := binary.LittleEndian.Uint16(b[:])
		step := binary.LittleEndian.Uint32(b[4:])
		errno := syscall.Errno(-int32(binary.LittleEndian.Uint32(b[8:])))
		switch {
		case kind == reportReady:
			ready = true
		case kind == reportFail && step < uint32(len(plan.Steps)):
			return &StepError{Step: plan.Steps[step], Errno: errno, Who: "command"}
		default:
			return fmt.Errorf("the run's first process sent report %d out of order", kind)
		}
	}
}

// Wait returns how the command ended. It returns ErrDied when PID 1 was killed
// before it could say so, as a memory limit's group kill does.
func (p *Process) Wait() (Exit, error) {
	m, _, err := p.receive()
	for ; err == nil && m.kind == msgStop; m, _, err = p.receive() {
		if p.stopped != nil {
			p.stopped(syscall.Signal(m.value))
		}
	}
	if err == io.EOF {
		return Exit{}, ErrDied
	}
	if err != nil {
		return Exit{}, fmt.Errorf("waiting for the command: %w", err)
	}
	if m.kind != msgExit {
		return Exit{}, fmt.Errorf("PID 1 sent message %d out of order", m.kind)
	}
	return Exit{
		Status: syscall.WaitStatus(m.value),
		User:   time.Duration(m.detail[0]) * time.Microsecond,
		System: time.Duration(m.detail[1]) * time.Microsecond,
	}, nil
}

// Reap collects PID 1 with wait4(2). Call it after the run's cgroup was
// killed; it blocks until PID 1 is gone.
func (p *Process) Reap() error {
	if p.Pid == 0 {
		return nil
	}
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.Pid, &status, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		p.Pid, p.Killed = 0, err == nil && status.Signaled()
		return err
	}
}

// Kill sends SIGKILL to PID 1, and so ends its PID namespace, wherever PID 1 is. A
// guardian that is no PID 1 does the killing itself, when it is told to: [Process.Hangup].
func (p *Process) Kill() error {
	if p.keep != KeepNamespace {
		return errors.Join(p.Hangup(), p.urge())
	}
	if p.PidFD == nil {
		return nil
	}
	if err := unix.PidfdSendSignal(int(p.PidFD.Fd()), unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("killing PID 1: %w", err)
	}
	return nil
}

// Hangup closes the lifeline: PID 1 exits, and the kernel kills the rest of
// the PID namespace. Without one the guardian does, and exits when nobody is left.
func (p *Process) Hangup() error {
	if err := closeFile(p.life); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// Close releases every descriptor. It does not wait for PID 1; see Reap.
func (p *Process) Close() error {
	err := errors.Join(p.Hangup(), closeFile(p.control), closeFile(p.errors), closeFile(p.PidFD), closeFile(p.Command))
	p.control, p.errors, p.PidFD, p.Command = nil, nil, nil, nil
	return err
}

func closeFile(f *os.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}
