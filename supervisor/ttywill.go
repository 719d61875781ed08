package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// Places in the notes: the caller's line settings, those that we have made, and
// the sequences that undo what the output has switched on.
const (
	savedAt  = 0
	rawAt    = 64
	undoAt   = 128
	maxUndo  = 512
	termios  = 36 // size of the kernel's struct termios (asm-generic/termbits.h)
	lineMode = 16 // of its beginning: c_iflag, c_oflag, c_cflag, c_lflag
)

// TerminalWill puts a person's terminal right when this process dies while it has it in raw
// mode: by SIGKILL it could not (decision 0023). A nil one does nothing.
type TerminalWill struct {
	will  *initproc.Will
	notes *os.File // what the will needs to know
	undo  []byte   // what it would write now
}

// LeaveTerminal leaves the will: a process that waits for our death. The terminal is read
// from in and written to through out. Where code in memory must not be executed, the init
// program is the file fallback, which root makes.
func LeaveTerminal(in, out *os.File, fallback string) (*TerminalWill, error) {
	notes, err := memfd("agentguard terminal", undoAt)
	if err != nil {
		return nil, err
	}
	w := &TerminalWill{notes: notes}
	if w.will, err = initproc.LeaveWill(w.list(in, out), fallback); err != nil {
		return nil, errors.Join(err, notes.Close())
	}
	return w, nil
}

// Settings notes the line settings that there were, and those that we make, as
// terminal.NewCaller tells them.
func (w *TerminalWill) Settings(saved, raw []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.notes.WriteAt(saved, savedAt)
	_, rerr := w.notes.WriteAt(raw, rawAt)
	return errors.Join(err, rerr)
}

// Undo notes what undoes the output so far. What is longer than the will can write is not
// noted.
func (w *TerminalWill) Undo(undo []byte) error {
	if w == nil || bytes.Equal(undo, w.undo) || len(undo) > maxUndo {
		return nil
	}
	w.undo = undo
	_, err := w.notes.WriteAt(undo, undoAt)
	return errors.Join(err, w.notes.Truncate(undoAt+int64(len(undo))))
}

// Revoke ends the process before it has done anything; twice is once.
func (w *TerminalWill) Revoke() error {
	if w == nil || w.will == nil {
		return nil
	}
	err := errors.Join(w.will.Revoke(), w.notes.Close())
	w.will = nil
	return err
}

// list are the calls that put the caller's terminal right when we die: by
// SIGKILL we could not. The line settings are left alone where they are not the ones
// that we made: a shell that has seen us die sets its own.
func (w *TerminalWill) list(in, out *os.File) *initproc.Program {
	p := &initproc.Program{}
	notes, tty, to := p.File(int(w.notes.Fd())), p.File(int(in.Fd())), p.File(int(out.Fd()))
	read := func(what string, at, size int) initproc.Arg {
		buf := p.Bytes(make([]byte, size))
		p.Call("will", "pread("+what+")", unix.SYS_PREAD64, notes, buf, initproc.Value(size), initproc.Value(at))
		return buf
	}
	undo, n := read("undo", undoAt, maxUndo), p.NewSlot()
	p.Steps[0].Save(n)
	p.Call("will", "write(undo)", unix.SYS_WRITE, to, undo, p.Saved(n))
	saved, raw, now := read("saved", savedAt, termios), read("raw", rawAt, termios), p.Bytes(make([]byte, termios))
	p.Call("will", "ioctl(TCGETS)", unix.SYS_IOCTL, tty, initproc.Value(unix.TCGETS), now)
	atOnce := p.Bytes(make([]byte, 16)) // struct timespec
	for off := 0; off < lineMode; off += 4 {
		// A comparison: futex(2) waits, and for no time at all, only where both are equal.
		p.Call("will", fmt.Sprintf("futex(raw[%d] == now[%d])", off, off), unix.SYS_FUTEX, p.Inside(now, off),
			initproc.Value(futexWaitPrivate), p.Saved(p.Slot(raw, off)), atOnce).Refused(int(unix.ETIMEDOUT), 0)
	}
	p.Call("will", "ioctl(TCSETS, saved)", unix.SYS_IOCTL, tty, initproc.Value(unix.TCSETS), saved)
	return p
}

const futexWaitPrivate = 128 // FUTEX_WAIT | FUTEX_PRIVATE_FLAG, include/uapi/linux/futex.h
