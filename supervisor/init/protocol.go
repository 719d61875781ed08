//go:build linux

package initproc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Kinds of lifeline messages and pipe reports: init.c's MSG_* and REPORT_*.
const (
	msgChild  = 1
	msgLocked = 2
	msgExit   = 3
	msgFail   = 4
	msgStop   = 5

	reportFail  = 1
	reportReady = 2
)

type message struct {
	kind   uint32
	value  int32
	detail [2]uint64
}

const messageSize = 24

// receive reads one lifeline message and the descriptor that came with it (-1: none).
func (p *Process) receive() (message, int, error) {
	var m message
	buf, oob := make([]byte, messageSize), make([]byte, unix.CmsgSpace(4))
	var n, oobn int
	rc, err := p.life.SyscallConn()
	if err != nil {
		return m, -1, err
	}
	var rerr error
	err = rc.Read(func(fd uintptr) bool {
		n, oobn, _, _, rerr = unix.Recvmsg(int(fd), buf, oob, unix.MSG_CMSG_CLOEXEC)
		return rerr != unix.EAGAIN && rerr != unix.EINTR
	})
	if err = errors.Join(err, rerr); err != nil {
		return m, -1, err
	}
	if n == 0 {
		return m, -1, io.EOF
	}
	if n != messageSize {
		return m, -1, fmt.Errorf("message of %d bytes from PID 1", n)
	}
	m.kind = binary.LittleEndian.Uint32(buf)
	m.value = int32(binary.LittleEndian.Uint32(buf[4:]))
	m.detail[0] = binary.LittleEndian.Uint64(buf[8:])
	m.detail[1] = binary.LittleEndian.Uint64(buf[16:])
	fd := -1
	if msgs, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(msgs) == 1 {
		if fds, err := unix.ParseUnixRights(&msgs[0]); err == nil && len(fds) == 1 {
			fd = fds[0]
		}
	}
	return m, fd, nil
}

// send puts the encoded program into a sealed memfd and passes it with the
// program's files. The limit of descriptors is the kernel's SCM_MAX_FD.
func send(sock *os.File, p *Program) error {
	if len(p.files) > planMaxFiles {
		return fmt.Errorf("the plan needs %d descriptors, more than the %d that one message passes: %w", len(p.files), planMaxFiles, unix.E2BIG)
	}
	plan := p.encode()
	mem, err := sealedMemfd("agentguard plan", plan, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	var hello [8]byte
	binary.LittleEndian.PutUint32(hello[:], planMagic)
	binary.LittleEndian.PutUint32(hello[4:], uint32(len(plan)))
	rights := unix.UnixRights(append([]int{int(mem.Fd())}, p.files...)...)
	rc, err := sock.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = rc.Write(func(fd uintptr) bool {
		serr = unix.Sendmsg(int(fd), hello[:], rights, nil, unix.MSG_NOSIGNAL)
		return serr != unix.EAGAIN && serr != unix.EINTR
	})
	return errors.Join(err, serr)
}

func socketpair(name string) (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	if err = unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}
