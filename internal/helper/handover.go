package helper

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Waiting reports whether Receive would return at once.
func Waiting(handover *os.File) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(handover.Fd()), Events: unix.POLLIN}}, 0)
	return n > 0 || err != nil
}

// Receive is the other end of the handover: the connection of a caller, or nil when
// there is none to come. loud says that a refusal is to have a line of the log; it is an
// end with RefusedStatus in any case.
func Receive(handover *os.File) (conn *net.UnixConn, loud bool, err error) {
	c, err := net.FileConn(handover)
	if err != nil {
		return nil, false, err
	}
	defer c.Close()
	word, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.(*net.UnixConn).ReadMsgUnix(word, oob)
	if err != nil || n == 0 {
		return nil, false, nil // the listener has ended
	}
	if conn, err = handedOver(oob[:n]); err == nil {
		_, _ = c.Write(word) // from here on it is ours; a listener that has ended does not ask
	}
	return conn, word[0] != quietWord, err
}

// handedOver is the one descriptor of a message.
func handedOver(oob []byte) (*net.UnixConn, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("no connection was handed over: %v", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("no connection was handed over: %v", err)
	}
	f := os.NewFile(uintptr(fds[0]), "connection of the caller")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("the connection of the caller is no unix socket"), conn.Close())
	}
	return u, nil
}
