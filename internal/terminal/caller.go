//go:build linux

package terminal

import (
	"errors"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Is reports whether f is a terminal.
func Is(f *os.File) bool {
	if f == nil {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Same reports whether both are one terminal, by whatever name they were opened:
// TIOCGDEV says which one /dev/tty stands for (ioctl_tty(2)).
func Same(a, b *os.File) bool {
	if !Is(a) || !Is(b) {
		return false
	}
	x, errA := unix.IoctlGetUint32(int(a.Fd()), unix.TIOCGDEV)
	y, errB := unix.IoctlGetUint32(int(b.Fd()), unix.TIOCGDEV)
	return errA == nil && errB == nil && x == y
}

// Caller is the terminal of the person who started the run. While the run has it,
// it is in raw mode: keys are bytes for the run's own terminal, which makes lines
// and signals of them.
type Caller struct {
	in, out *os.File
	note    func(saved, raw []byte)

	mu    sync.Mutex
	saved unix.Termios // as it was before we took it
	raw   unix.Termios // as we set it
	taken bool
}

// NewCaller returns the terminal that is read from in and written to through out.
// note, if not nil, hears of the line settings before they are changed: those that
// there are, and those that will be, as TCGETS and TCSETS have them in memory.
func NewCaller(in, out *os.File, note func(saved, raw []byte)) *Caller {
	if note == nil {
		note = func([]byte, []byte) {}
	}
	return &Caller{in: in, out: out, note: note}
}

// In is where the terminal is read from.
func (c *Caller) In() *os.File { return c.in }

// Out is where it is written to.
func (c *Caller) Out() *os.File { return c.out }

// Foreground reports whether this process may read the terminal now: a shell gives
// it to one of its jobs at a time. Where the terminal controls no session of ours
// there are no jobs.
func (c *Caller) Foreground() bool {
	group, err := unix.IoctlGetInt(int(c.in.Fd()), unix.TIOCGPGRP)
	return err == unix.ENOTTY || err == nil && group == unix.Getpgrp()
}

// Settings returns the terminal's line settings and its size.
func (c *Caller) Settings() (*unix.Termios, *unix.Winsize, error) {
	t, err := unix.IoctlGetTermios(int(c.in.Fd()), unix.TCGETS)
	if err != nil {
		return nil, nil, os.NewSyscallError("ioctl TCGETS", err)
	}
	size, err := unix.IoctlGetWinsize(int(c.out.Fd()), unix.TIOCGWINSZ)
	return t, size, os.NewSyscallError("ioctl TIOCGWINSZ", err)
}

// Take puts the terminal into raw mode and reports whether it was not before. It is
// not taken from another job.
func (c *Caller) Take() (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.Foreground() {
		c.taken = false // a shell that stopped us has put it right
		return false, nil
	}
	now, err := unix.IoctlGetTermios(int(c.in.Fd()), unix.TCGETS)
	if err != nil {
		return false, os.NewSyscallError("ioctl TCGETS", err)
	}
	if c.taken && *now == c.raw {
		return false, nil
	}
	c.saved = *now
	c.note(bytesOf(c.saved), bytesOf(*Raw(*now)))
	if err := unix.IoctlSetTermios(int(c.in.Fd()), unix.TCSETSW, Raw(*now)); err != nil {
		return false, os.NewSyscallError("ioctl TCSETSW", err)
	}
	set, err := unix.IoctlGetTermios(int(c.in.Fd()), unix.TCGETS) // what the driver made of it
	if err != nil {
		return false, os.NewSyscallError("ioctl TCGETS", err)
	}
	c.raw, c.taken = *set, true
	c.note(bytesOf(c.saved), bytesOf(c.raw))
	return true, nil
}

// Taken reports whether the terminal is in raw mode for us.
func (c *Caller) Taken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.taken
}

// GiveBack undoes Take, and undo of what was written to the terminal. Keys that
// nobody has read stay for whoever reads next.
func (c *Caller) GiveBack(undo []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.taken {
		return nil
	}
	c.taken = false
	if !c.Foreground() { // it is another job's, or gone
		return nil
	}
	_, werr := c.out.Write(undo)
	err := unix.IoctlSetTermios(int(c.in.Fd()), unix.TCSETSW, &c.saved)
	return errors.Join(werr, os.NewSyscallError("ioctl TCSETSW", err))
}

// kernelTermios is the size of the kernel's struct termios (asm-generic/termbits.h).
const kernelTermios = 36

func bytesOf(t unix.Termios) []byte {
	return append([]byte(nil), (*[kernelTermios]byte)(unsafe.Pointer(&t))[:]...)
}

// Raw returns t without everything that a line discipline does: cfmakeraw(3).
func Raw(t unix.Termios) *unix.Termios {
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag = t.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	return &t
}
