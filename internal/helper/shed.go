package helper

import (
	"net"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lostthread"
)

// shedder closes connections of which nobody has read what came. Descriptors may wait there
// (SCM_RIGHTS), and who closes the connection closes them: a socket with SO_LINGER is waited for
// then, for years where its owner likes (socket(7)). Only for a thread that is ending does the
// kernel not wait (PF_EXITING). So one that has a table of descriptors of its own
// ends with them, when the process has closed its own:
//
//	listener --- queue --- shedder            a thread
//	                         <--------------- unshare(CLONE_FILES)
//	                       close each
//	                         ---------------> ends, and with it the last descriptors
type shedder chan *net.UnixConn

// shedAtOnce bounds the connections that wait to be closed. When they are so many, whoever
// refuses another waits for a thread to be made.
const shedAtOnce = 64

func newShedder() shedder {
	s := make(shedder, shedAtOnce)
	go func() {
		for c := range s {
			s.close(c)
		}
	}()
	return s
}

// close closes a connection, and those that wait besides.
func (s shedder) close(first *net.UnixConn) {
	list := []*net.UnixConn{first}
	for more := true; more && len(list) < shedAtOnce; {
		select {
		case c := <-s:
			list = append(list, c)
		default:
			more = false
		}
	}
	has, closed := make(chan error), make(chan struct{})
	go func() {
		_ = lostthread.Run(func() error {
			has <- unix.Unshare(unix.CLONE_FILES) // without memory: then they are closed here
			<-closed
			return nil
		}) // nothing of it fails
	}()
	<-has
	for _, c := range list {
		_ = c.Close()
	}
	close(closed)
}
