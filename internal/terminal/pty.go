//go:build linux

package terminal

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Pty is a pseudoterminal: what is written to the master is typed at the slave,
// and what programs print on the slave is read from the master.
type Pty struct {
	Master *os.File // non-blocking, for Go's poller
	Slave  *os.File

	master int // Master's descriptor: Fd would make it block
}

// OpenPty makes a pseudoterminal in a devpts instance, given by its mounted or
// detached root. Where the instance is the run's own, programs find its slave under
// its name. The slave is opened by TIOCGPTPEER (4.13): no name is resolved.
func OpenPty(devpts *os.File) (*Pty, error) {
	fd, err := unix.Openat(int(devpts.Fd()), "ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("a terminal for the run: open ptmx: %w", err)
	}
	p := &Pty{Master: os.NewFile(uintptr(fd), "master of the run's terminal"), master: fd}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, errors.Join(os.NewSyscallError("ioctl TIOCSPTLCK", err), p.Close())
	}
	slave, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return nil, errors.Join(os.NewSyscallError("ioctl TIOCGPTPEER", errno), p.Close())
	}
	p.Slave = os.NewFile(slave, "the run's terminal")
	return p, nil
}

// Like gives the terminal the line settings of another; nil leaves the kernel's,
// which are a usual terminal's, and declares that it shows UTF-8.
func (p *Pty) Like(t *unix.Termios) error {
	fd := int(p.Slave.Fd())
	if t == nil {
		own, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return os.NewSyscallError("ioctl TCGETS", err)
		}
		own.Iflag |= unix.IUTF8
		t = own
	}
	return os.NewSyscallError("ioctl TCSETS", unix.IoctlSetTermios(fd, unix.TCSETS, t))
}

// Resize sets the size, in characters. When it changes, the foreground processes
// get SIGWINCH.
func (p *Pty) Resize(size *unix.Winsize) error {
	return os.NewSyscallError("ioctl TIOCSWINSZ", unix.IoctlSetWinsize(p.master, unix.TIOCSWINSZ, size))
}

// Raw reports whether what is typed is given to a program key by key, unseen: one
// reads that has asked for that, and no line is being edited.
func (p *Pty) Raw() bool {
	raw := false
	c, err := p.Master.SyscallConn()
	if err != nil {
		return false
	}
	err = c.Control(func(fd uintptr) {
		t, err := unix.IoctlGetTermios(int(fd), unix.TCGETS) // of the master: the slave's (tty_mode_ioctl)
		raw = err == nil && t.Lflag&(unix.ICANON|unix.ECHO) == 0
	})
	return err == nil && raw
}

// CloseSlave closes our slave. When no process has one either, reads from the master
// end with EIO after what is still in it.
func (p *Pty) CloseSlave() error {
	if p.Slave == nil {
		return nil
	}
	err := p.Slave.Close()
	p.Slave = nil
	return err
}

// Close releases both ends; safe to call twice.
func (p *Pty) Close() error {
	err := p.CloseSlave()
	if cerr := p.Master.Close(); !errors.Is(cerr, os.ErrClosed) {
		err = errors.Join(err, cerr)
	}
	return err
}
