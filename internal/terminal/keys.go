//go:build linux

package terminal

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Keys copies what is typed at a terminal until Stop. It never has a read under way
// while it waits, so that whoever reads next loses nothing to it.
type Keys struct {
	from *os.File
	own  int // a descriptor of the same terminal, whose reads do not wait; -1 where that may not be had
	to   io.Writer
	may  func() bool // asked before each read
	wake *os.File    // eventfd(2)
	over atomic.Bool // Stop was called
	done chan struct{}
	end  bool // end of file, or the terminal is gone; read after done
}

// lookAgain is how often a run in the background looks whether it has come to the
// foreground: a shell does not say so to a job that was not stopped.
const lookAgain = 200 * time.Millisecond

// CopyKeys begins to copy. Where may says no, keys are left to others for a while.
func CopyKeys(from *os.File, to io.Writer, may func() bool) (*Keys, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	k := &Keys{from: from, own: neverWaits(from), to: to, may: may, wake: os.NewFile(uintptr(fd), "wake of the keys"), done: make(chan struct{})}
	go k.run()
	return k, nil
}

// neverWaits opens the terminal again, so that a read of it does not wait: between
// poll(2) and read(2) a shell may stop us and take the key that there was. The
// flag cannot be set on from, whose open file is the caller's too. Where the
// terminal may not be opened (su(1) leaves it to its owner), such a read waits
// for the next key.
func neverWaits(from *os.File) int {
	name := "/proc/self/fd/" + strconv.Itoa(int(from.Fd()))
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
}

// Done is closed when no more is copied.
func (k *Keys) Done() <-chan struct{} { return k.done }

// Ended reports, after Done, whether the terminal had no more: end of file was
// typed, or it was hung up.
func (k *Keys) Ended() bool { return k.end }

// Look asks again whether keys may be read. It must not be called after Stop.
func (k *Keys) Look() error {
	_, err := k.wake.Write(binary.NativeEndian.AppendUint64(nil, 1))
	return err
}

// Stop ends the copying; twice is once. A write that blocks is the caller's to end.
func (k *Keys) Stop() error {
	if k.over.Swap(true) {
		return nil
	}
	if err := k.Look(); err != nil {
		return err
	}
	<-k.done
	err := k.wake.Close()
	if k.own >= 0 {
		err = errors.Join(err, os.NewSyscallError("close", unix.Close(k.own)))
	}
	return err
}

func (k *Keys) run() {
	defer close(k.done)
	buf, from := make([]byte, 4096), k.own
	if from < 0 {
		from = int(k.from.Fd())
	}
	for {
		typed, stop := k.wait()
		if stop {
			return
		}
		if !typed {
			continue
		}
		n, err := unix.Read(from, buf)
		switch {
		case err == unix.EINTR, err == unix.EAGAIN, err == unix.EIO: // EIO: we have just lost the foreground
			continue
		case err != nil, n <= 0:
			k.end = true
			return
		}
		if _, err := k.to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// wait waits for a key that may be read, or for the end.
func (k *Keys) wait() (typed, stop bool) {
	fds := []unix.PollFd{{Fd: int32(k.wake.Fd()), Events: unix.POLLIN}, {Fd: int32(k.from.Fd())}}
	limit := int(lookAgain / time.Millisecond)
	if k.may() {
		fds[1].Events, limit = unix.POLLIN, -1
	}
	_, err := unix.Poll(fds, limit)
	if err == unix.EINTR {
		return false, false
	}
	if fds[0].Revents != 0 {
		_, err = k.wake.Read(make([]byte, 8))
	}
	k.end = fds[1].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
	return fds[1].Revents != 0 && k.may(), err != nil || k.end || k.over.Load()
}
