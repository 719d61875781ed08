//go:build linux

package initproc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Entered is what became of the calls of [Enter], as the process that comes back finds it
// in its environment.
type Entered struct {
	Step    int           // the call that failed; its index in the list
	Errno   syscall.Errno // how; 0: all were made
	Outside *os.File      // socket of the process that stays outside; see internal/outer
	Pid     int           // of that process, our child
}

// NoOutside is Entered.Step when the process outside could not be made, and nothing else was tried.
const NoOutside = 0xffff

// marker is the variable that carries it. Whoever sets it himself is told that his
// namespaces are not there, and nothing else.
const marker = "AGENTGUARD_ENTERED"

// Enter replaces this process by the init program, which makes the calls of a list and
// then starts exe anew with argv and env: the same process, with all the descriptors that
// are not close-on-exec, and with one more variable. It does so whatever became of the
// calls; it comes back here only when nothing was done.
//
// Before the calls a process is forked that stays where it is. exe must be open for
// reading or O_PATH; fallback is as Config.FallbackExe.
func Enter(calls *Program, exe *os.File, argv, env []string, fallback string) error {
	outside, theirs, err := inherited("outside")
	if err != nil {
		return err
	}
	defer outside.Close()
	defer theirs.Close()
	if _, err := unix.FcntlInt(outside.Fd(), unix.F_SETFD, 0); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	list := *calls
	const blank = "0000000000000000" // call, errno and process id, which init writes
	mark := list.String(marker + "=" + blank + "-" + strconv.Itoa(int(outside.Fd())))
	words := make([]Arg, 0, len(env)+2)
	for _, kv := range env {
		if !strings.HasPrefix(kv, marker+"=") {
			words = append(words, list.String(kv))
		}
	}
	envp := list.Words(append(words, mark, Value(0))...)
	list.last("execveat(ourselves)", unix.SYS_EXECVEAT, list.File(int(exe.Fd())), list.String(""), list.Strings(argv), envp,
		Value(unix.AT_EMPTY_PATH), list.Inside(mark, len(marker)+1))
	return become(&list, int(theirs.Fd()), fallback)
}

// last adds the call that is made in any case.
func (p *Program) last(label string, nr uintptr, args ...Arg) {
	p.Steps = slices.Clip(p.Steps) // the caller's list stays as it is
	p.Call("enter", label, nr, args...)
}

// become is execve of the init program, which finds the list in a socket.
func become(list *Program, outside int, fallback string) error {
	path, argv, release, err := enterable(list, outside, fallback)
	if err != nil {
		return err
	}
	defer release()
	return os.NewSyscallError("execve", syscall.Exec(path, argv, []string{}))
}

// enterable prepares the init program's path and arguments; the list waits in a socket
// that is inherited.
func enterable(list *Program, outside int, fallback string) (path string, argv []string, release func() error, err error) {
	ours, theirs, err := inherited("list")
	if err != nil {
		return "", nil, nil, err
	}
	exe, err := openProgram(fallback)
	if err == nil {
		err = send(ours, list)
	}
	release = func() error { return errors.Join(ours.Close(), theirs.Close(), closeFile(exe)) }
	if err != nil {
		return "", nil, nil, errors.Join(err, release())
	}
	argv = []string{"agentguard-enter", "enter", strconv.Itoa(int(theirs.Fd())), strconv.Itoa(outside)}
	return fmt.Sprintf("/proc/self/fd/%d", exe.Fd()), argv, release, nil
}

// inherited is a pair of sockets of which the second survives an execve.
func inherited(name string) (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs = os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name)
	if _, err := unix.FcntlInt(uintptr(fds[1]), unix.F_SETFD, 0); err != nil {
		return nil, nil, errors.Join(os.NewSyscallError("fcntl", err), ours.Close(), theirs.Close())
	}
	return ours, theirs, nil
}

// TakeEntered takes the variable of [Enter] out of the environment; nil: it is not there, or
// is nothing that Enter has written.
func TakeEntered() *Entered {
	text, ok := os.LookupEnv(marker)
	if !ok {
		return nil
	}
	_ = os.Unsetenv(marker) // cannot fail for this name
	n, err := parseEntered(text)
	if err != nil {
		return nil
	}
	unix.CloseOnExec(int(n.Outside.Fd()))
	return n
}

func parseEntered(text string) (*Entered, error) {
	digits, number, ok := strings.Cut(text, "-")
	if !ok || len(digits) != 16 {
		return nil, errors.New("not 16 digits and a number")
	}
	all, err := strconv.ParseUint(digits, 16, 64)
	if err != nil {
		return nil, err
	}
	fd, err := strconv.ParseUint(number, 10, 31)
	if err != nil {
		return nil, err
	}
	if fd <= 2 {
		return nil, errors.New("a standard stream")
	}
	kind, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_SEQPACKET {
		return nil, errors.New("no socket of Enter's")
	}
	return &Entered{
		Step: int(all >> 48), Errno: syscall.Errno(all >> 32 & 0xffff), Pid: int(int32(all)),
		Outside: os.NewFile(uintptr(fd), "outside"),
	}, nil
}

// TryEnter makes the calls of a list in a child, which then ends. It returns which one failed and how; errno 0: none.
// as is whom the child becomes first, which takes root; nil: it stays who we are.
func TryEnter(calls *Program, as *syscall.Credential, fallback string) (step int, errno syscall.Errno, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, 0, err
	}
	defer r.Close()
	list := *calls
	text := list.Bytes(make([]byte, 16))
	list.last("write(what became of it)", unix.SYS_WRITE, list.File(int(w.Fd())), text, Value(16), Value(0), Value(0), text)
	path, argv, release, err := enterable(&list, -1, fallback)
	if err != nil {
		return 0, 0, errors.Join(err, w.Close())
	}
	cmd := exec.Cmd{Path: path, Args: argv, Env: []string{}, SysProcAttr: &syscall.SysProcAttr{Credential: as}}
	err = cmd.Start()
	err = errors.Join(err, release(), w.Close())
	if err != nil {
		return 0, 0, err
	}
	var buf [17]byte
	n, rerr := r.Read(buf[:])
	_ = cmd.Wait() // 125 in any case
	all, perr := strconv.ParseUint(string(buf[:n]), 16, 64)
	if n != 16 || perr != nil {
		return 0, 0, errors.Join(ErrDied, rerr)
	}
	return int(all >> 48), syscall.Errno(all >> 32 & 0xffff), nil
}
