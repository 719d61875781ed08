// Package helper is what passes between a caller without root and the privileged
// helper: the frames, who a peer is, which descriptors are taken from it, how much
// it may ask for at once, and the helper's own log.
//
// A frame is a header and lists of texts, nothing nested:
//
//	header  "agh" version(1)   kind(1) zero(3)   size of the body, uint32
//	body    for each list: number of texts, uint32; for each text: its length, uint32, and its bytes
//
// All numbers are little-endian. Descriptors come with the header (SCM_RIGHTS,
// unix(7)), and there are as many as the kind says, or the frame is refused. It is
// so plain because the process that decodes it holds privileges: there is no
// syntax, no number in text and no recursion. Files in YAML are parsed by the caller, who
// has nothing to gain by doing it wrong.
package helper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Version is the one version of the protocol that this build speaks: client and
// helper are one program.
const Version = 1

// Kind says what a frame is.
type Kind byte

// Kinds of frames. The first seven are requests, one a connection; the lists and
// descriptors of each are where it is sent.
const (
	Exec    Kind = 'X' // run a command; descriptors 0, 1 and 2
	DryRun  Kind = 'D' // the same, and only say what would be done
	Records Kind = 'r' // records, read-only: the caller's, or for an auditor another user's
	Users   Kind = 'u' // for an auditor: whose records there are
	Commit  Kind = 'c' // apply staged changes
	Discard Kind = 'd' // throw them away
	End     Kind = 'k' // signal a live run

	Signal  Kind = 'S' // client, during Exec: a signal for the command
	Stopped Kind = 'T' // helper, during Exec: the command was stopped on its terminal
	Done    Kind = '.' // helper: the answer
	Failed  Kind = '!' // helper: why there is none
)

// MaxBody bounds a frame, in bytes. A command with its environment takes half of
// that at most (execve(2)).
const MaxBody = 4 << 20

// maxTexts bounds the lists of a frame and their texts together: an empty one takes four
// bytes there and sixteen or more in memory.
const maxTexts = 1 << 18

// maxFiles is the most descriptors that any frame has.
const maxFiles = 3

const headerLen = 12

// Frame is one message.
type Frame struct {
	Kind  Kind
	Lists [][]string
	Files []*os.File
}

// Close closes the descriptors that came with the frame.
func (f *Frame) Close() error {
	var errs []error
	for _, file := range f.Files {
		errs = append(errs, file.Close())
	}
	f.Files = nil
	return errors.Join(errs...)
}

// Drop closes the descriptors, and waits for none: they may be such as take as long to be closed as the
// other end likes (SO_LINGER, FUSE). What is left of it ends with the process.
func (f *Frame) Drop() {
	files := f.Files
	if f.Files = nil; len(files) == 0 {
		return
	}
	go func() {
		for _, file := range files {
			_ = file.Close() // of somebody else's
		}
	}()
}

// ErrFrame is wrapped by the error of whatever is no frame of this protocol.
var ErrFrame = errors.New("not a request of this protocol")

func encode(f *Frame) ([]byte, error) {
	b := append(make([]byte, 0, 4096), 'a', 'g', 'h', Version, byte(f.Kind), 0, 0, 0, 0, 0, 0, 0)
	for _, list := range f.Lists {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(list)))
		for _, text := range list {
			b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
			b = append(b, text...)
		}
	}
	n := len(b) - headerLen
	if n > MaxBody {
		return nil, fmt.Errorf("a request of %d bytes, and %d are allowed: the environment or the command is too long", n, MaxBody)
	}
	binary.LittleEndian.PutUint32(b[8:], uint32(n))
	return b, nil
}

// decode reads the lists of a body. Every number is bounded by the bytes that are left.
func decode(b []byte) ([][]string, error) {
	var lists [][]string
	left := maxTexts
	for len(b) > 0 {
		n, rest, err := number(b)
		if err != nil || n > len(rest)/4 { // each text takes four bytes at least
			return nil, fmt.Errorf("%w: a list that is cut", ErrFrame)
		}
		if left -= n + 1; left < 0 {
			return nil, fmt.Errorf("%w: more than %d texts", ErrFrame, maxTexts)
		}
		b = rest
		list := make([]string, n)
		for i := range list {
			size, rest, err := number(b)
			if err != nil || size > len(rest) {
				return nil, fmt.Errorf("%w: a text that is cut", ErrFrame)
			}
			list[i], b = string(rest[:size]), rest[size:]
		}
		lists = append(lists, list)
	}
	return lists, nil
}

func number(b []byte) (int, []byte, error) {
	if len(b) < 4 {
		return 0, nil, ErrFrame
	}
	return int(binary.LittleEndian.Uint32(b)), b[4:], nil
}

// Write sends a frame with its descriptors, which stay open here. Several may write
// small frames at once: each goes in one sendmsg(2).
func Write(c *net.UnixConn, f *Frame) error {
	b, err := encode(f)
	if err != nil {
		return err
	}
	var rights []byte
	if len(f.Files) > 0 {
		fds := make([]int, len(f.Files))
		for i, file := range f.Files {
			fds[i] = int(file.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	n, _, err := c.WriteMsgUnix(b, rights, nil)
	if err == nil && n < len(b) {
		_, err = c.Write(b[n:])
	}
	return err
}

// Read receives a frame. At its clean end the connection gives io.EOF.
func Read(c *net.UnixConn) (*Frame, error) {
	f := &Frame{}
	header := make([]byte, headerLen)
	n, err := f.begin(c, header)
	if err != nil {
		f.Drop()
		return nil, err
	}
	if _, err = io.ReadFull(c, header[n:]); err == nil {
		err = f.body(c, header)
	}
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: it ends too early", ErrFrame)
		}
		f.Drop()
		return nil, err
	}
	return f, nil
}

// begin reads the first bytes, with which the descriptors come.
func (f *Frame) begin(c *net.UnixConn, header []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := c.ReadMsgUnix(header, oob)
	if err != nil {
		return 0, err
	}
	cut := flags&unix.MSG_CTRUNC != 0
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrFrame, err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil { // credentials: nobody asked for them
			cut = true
			continue
		}
		for _, fd := range fds {
			f.Files = append(f.Files, os.NewFile(uintptr(fd), "descriptor of the caller"))
		}
	}
	switch {
	case cut || len(f.Files) > maxFiles:
		return 0, fmt.Errorf("%w: too many descriptors", ErrFrame)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (f *Frame) body(c *net.UnixConn, header []byte) error {
	size := binary.LittleEndian.Uint32(header[8:])
	switch {
	case string(header[:3]) != "agh" || header[5]|header[6]|header[7] != 0:
		return ErrFrame
	case header[3] != Version:
		return fmt.Errorf("%w: version %d, and this is %d: client and helper are of two installations", ErrFrame, header[3], Version)
	case size > MaxBody:
		return fmt.Errorf("%w: %d bytes, and %d are allowed", ErrFrame, size, MaxBody)
	}
	b := make([]byte, size)
	_, err := io.ReadFull(c, b)
	if err != nil {
		return err
	}
	f.Kind = Kind(header[4])
	f.Lists, err = decode(b)
	return err
}
