package reexec

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Main runs a process started by [Start]; it returns its exit status. Errors go
// to standard error, which the supervisor reads.
func Main(serve func() error) int {
	err := Become()
	if err == nil {
		err = serve()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Control is the process's socket to its supervisor.
func Control() (*net.UnixConn, error) { return Conn(os.NewFile(ControlFD, "control")) }

// Receive calls fn for each message until the other side has no more to say. The
// descriptors are fn's to close.
func Receive(conn *net.UnixConn, fn func(message string, fds []int) error) error {
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*MaxRights))
	for {
		n, oobn, _, _, err := conn.ReadMsgUnix(buf, oob)
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) || err == nil && n == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		fds, err := receivedFDs(oob[:oobn])
		if err == nil {
			err = fn(string(buf[:n]), fds)
		}
		if err != nil {
			return err
		}
	}
}

// receivedFDs are closed on exec: package net asks for that as it receives (MSG_CMSG_CLOEXEC).
func receivedFDs(oob []byte) ([]int, error) {
	var all []int
	msgs, err := unix.ParseSocketControlMessage(oob)
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return all, err
		}
		all = append(all, fds...)
	}
	return all, err
}
