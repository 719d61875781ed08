//go:build linux

package metadata

import (
	"time"

	"golang.org/x/sys/unix"
)

// Limit bounds how long the file systems may take for one call. The path is the command's to
// choose, and a dead NFS or FUSE server, or an automount, may never answer; meanwhile no other call
// of the command is.
const Limit = 10 * time.Second

// answer is what a call ends with.
type answer struct {
	errno unix.Errno
	done  bool
}

// bounded waits for work, on a thread of its own, no longer than the limit; after that nothing is
// changed any more, and the thread is left to its file system. may is what work asks before it goes
// on: it is answered here, where the call is known to wait.
func (c *Changer) bounded(call *Call, work func(may func() bool) answer) answer {
	asks, may, left, ended := make(chan struct{}), make(chan bool), make(chan struct{}), make(chan answer, 1)
	go func() {
		ended <- work(func() bool {
			select {
			case asks <- struct{}{}:
				return <-may
			case <-left:
				return false
			}
		})
	}()
	late := c.after(Limit)
	for {
		select {
		case <-asks:
			may <- call.Waits()
		case a := <-ended:
			return a
		case <-late:
			close(left)
			c.stuck = ended
			return answer{}
		}
	}
}

// Stuck reports whether a file system did not answer in time, so that nothing more is changed. The
// call that it was may still be made, if it does and was asked for the last step.
func (c *Changer) Stuck() bool { return c.stuck != nil }
