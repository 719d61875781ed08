package bpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

const (
	headerSize = 64
	eventTypes = 32 // EVENT_TYPES of c/abi.h
)

var order = binary.LittleEndian // amd64 and arm64

// decode fills ev from one ring record; c/abi.h has the layouts.
func (ev *Event) decode(b []byte) error {
	if len(b) < headerSize {
		return fmt.Errorf("bpf: record of %d bytes", len(b))
	}
	*ev = Event{
		paths: ev.paths[:0],
		Type:  Type(b[0]),
		Class: Class(b[1]),
		Phase: Phase(b[2]),
		Flags: Flags(b[3]),
		CPU:   int(order.Uint16(b[4:])),
		Run:   order.Uint64(b[8:]),
		Seq:   order.Uint64(b[16:]),
		Time:  order.Uint64(b[24:]),
		Start: order.Uint64(b[32:]),
		TGID:  order.Uint32(b[40:]),
		TID:   order.Uint32(b[44:]),
		Ret:   int64(order.Uint64(b[48:])),
		NR:    int(int32(order.Uint32(b[56:]))),
		UID:   order.Uint32(b[60:]),
	}
	if int(ev.Type) >= len(bodies) || bodies[ev.Type].decode == nil {
		return fmt.Errorf("bpf: record of unknown type %d", ev.Type)
	}
	body := b[headerSize:]
	if len(body) < bodies[ev.Type].size {
		return fmt.Errorf("bpf: record of type %d is cut at %d bytes", ev.Type, len(b))
	}
	bodies[ev.Type].decode(ev, body)
	return nil
}

// bodies says for each type how long the fixed part after the header is.
var bodies = [...]struct {
	size   int
	decode func(*Event, []byte)
}{
	Exec:     {execSize, (*Event).decodeExec},
	ExecArgs: {8, (*Event).decodeArgs},
	ExecEnv:  {8, (*Event).decodeEnv},
	ExecFail: {callSize, (*Event).decodeCall},
	Fork:     {24, (*Event).decodeFork},
	Exit:     {48, (*Event).decodeExit},
	Deny:     {callSize, (*Event).decodeCall},
	Call:     {callSize, (*Event).decodeCall},
	File:     {fileSize, (*Event).decodeFile},
	FD:       {fileSize, (*Event).decodeFile},
	Repeat:   {48, (*Event).decodeRepeat},
	Listen:   {32, (*Event).decodeSocket},
	Socket:   {32, (*Event).decodeSocket},
	Unix:     {8, (*Event).decodeUnix},
	Receive:  {fileSize, (*Event).decodeFile},
	Object:   {objectSize, (*Event).decodeObject},
}

// Sizes of the fixed parts of struct ev_exec, ev_call, ev_file and ev_object after the header.
const (
	execSize   = 80
	callSize   = 104
	fileSize   = 96
	objectSize = 32
)

func device(dev uint32) uint64 { return unix.Mkdev(dev>>20, dev&0xfffff) }

func (ev *Event) decodeExec(b []byte) {
	x := &ev.Exec
	*x = ExecInfo{
		Inode:      order.Uint64(b),
		Dev:        device(order.Uint32(b[8:])),
		GID:        order.Uint32(b[12:]),
		Mode:       uint16(order.Uint32(b[16:])),
		NSPID:      order.Uint32(b[20:]),
		Argc:       order.Uint32(b[24:]),
		ArgsLen:    order.Uint32(b[28:]),
		EnvLen:     order.Uint32(b[32:]),
		PPID:       order.Uint32(b[36:]),
		ParentTime: order.Uint64(b[40:]),
		Ctime:      int64(order.Uint64(b[72:])),
	}
	full, state := order.Uint32(b[48:]), b[60]
	var names []byte
	rest := b[execSize:]
	x.File, rest = take(rest, int(order.Uint16(b[52:])))
	x.Interp, rest = take(rest, int(order.Uint16(b[54:])))
	names, rest = take(rest, int(order.Uint16(b[56:])))
	x.Args, _ = take(rest, int(order.Uint16(b[58:])))
	x.File, x.Interp = text(x.File), text(x.Interp)
	x.Image = ev.path(names, full, state)
}

func (ev *Event) decodeArgs(b []byte) {
	ev.Exec.Offset = order.Uint32(b)
	ev.Exec.Args, _ = take(b[8:], int(order.Uint32(b[4:])))
}

func (ev *Event) decodeEnv(b []byte) {
	ev.Exec.Offset = order.Uint32(b)
	ev.Exec.Env, _ = take(b[8:], int(order.Uint32(b[4:])))
}

func (ev *Event) decodeFork(b []byte) {
	ev.Fork = ForkInfo{
		Start: order.Uint64(b),
		TGID:  order.Uint32(b[8:]),
		TID:   order.Uint32(b[12:]),
		NSPID: order.Uint32(b[16:]),
	}
}

func (ev *Event) decodeExit(b []byte) {
	ev.Exit = ExitInfo{
		Utime:   order.Uint64(b),
		Stime:   order.Uint64(b[8:]),
		Runtime: order.Uint64(b[16:]),
		MaxRSS:  order.Uint64(b[24:]) * uint64(os.Getpagesize()),
		Status:  unix.WaitStatus(order.Uint32(b[32:])),

		PPID:       order.Uint32(b[36:]),
		ParentTime: order.Uint64(b[40:]),
	}
}

func (ev *Event) decodeCall(b []byte) {
	for i := range ev.Call.Args {
		ev.Call.Args[i] = order.Uint64(b[8*i:])
	}
	c := &ev.Call
	c.Inode, c.Resolve = order.Uint64(b[48:]), order.Uint64(b[56:])
	if c.Inode != 0 {
		c.Dev = device(order.Uint32(b[64:]))
	}
	full, full2 := order.Uint32(b[68:]), order.Uint32(b[72:])
	var dir, dir2 []byte
	rest := b[callSize:]
	for i, part := range []*[]byte{&c.Path, &c.Path2, &c.Addr, &dir, &dir2} {
		*part, rest = take(rest, int(order.Uint16(b[76+2*i:])))
	}
	c.Path, c.Path2 = text(c.Path), text(c.Path2)
	c.Dir, c.Dir2 = ev.path(dir, full, b[86]), ev.path(dir2, full2, b[87])
	c.Object = order.Uint64(b[88:])
	const own = 128 // REFUSED_OWN of c/abi.h
	c.Refused = Refusal{By: RefusedBy(b[100] &^ own), Own: b[100]&own != 0, Access: order.Uint32(b[96:])}
}

func (ev *Event) decodeObject(b []byte) {
	o := &ev.Object
	*o = ObjectInfo{Inode: order.Uint64(b), Refused: b[28] != 0}
	if o.Inode != 0 {
		o.Dev = device(order.Uint32(b[8:]))
	}
	names, rest := take(b[objectSize:], int(order.Uint16(b[20:])))
	names2, rest := take(rest, int(order.Uint16(b[22:])))
	o.Text, _ = take(rest, int(order.Uint16(b[24:])))
	o.Text = text(o.Text)
	o.Path, o.Path2 = ev.path(names, order.Uint32(b[12:]), b[26]), ev.path(names2, order.Uint32(b[16:]), b[27])
}

// decodeInfo reads struct file_info.
func (ev *Event) decodeInfo(b []byte) (full uint32, state byte) {
	ev.File = FileInfo{
		Inode: order.Uint64(b),
		Dev:   device(order.Uint32(b[8:])),
		FMode: order.Uint32(b[12:]),
		Mode:  order.Uint16(b[16:]),
		How:   How(b[19]),
		Slot:  noSlot,
		Ctime: int64(order.Uint64(b[24:])),
	}
	return order.Uint32(b[20:]), b[18]
}

const noSlot = 255 // NO_SLOT of c/abi.h

func (ev *Event) decodeFile(b []byte) {
	full, state := ev.decodeInfo(b)
	f := &ev.File
	for i := range f.Args {
		f.Args[i] = order.Uint64(b[32+8*i:])
	}
	f.Resolve = order.Uint64(b[80:])
	f.Slot, f.Object = b[92], b[93] == 1
	names, rest := take(b[fileSize:], int(order.Uint16(b[88:])))
	f.Given, _ = take(rest, int(order.Uint16(b[90:])))
	f.Given = text(f.Given)
	f.Path = ev.path(names, full, state)
}

func (ev *Event) decodeRepeat(b []byte) {
	ev.decodeInfo(b)
	ev.File.Count, ev.File.Slot = order.Uint64(b[32:]), b[40]
}

// path puts names that lead upwards, each ended by a zero byte, into the order of a path.
func (ev *Event) path(names []byte, full uint32, state byte) Path {
	const rooted, deleted = 1, 2 // enum path_state of c/abi.h
	p := Path{Full: full, Rooted: state&rooted != 0, Deleted: state&deleted != 0}
	if len(names) == 0 && !p.Rooted {
		return p
	}
	from := len(ev.paths)
	if len(names) == 0 {
		ev.paths = append(ev.paths, '/')
	}
	for end := len(names); end > 0; {
		start := bytes.LastIndexByte(names[:end-1], 0) + 1
		if p.Rooted && int(full) <= len(names) || len(ev.paths) > from {
			ev.paths = append(ev.paths, '/')
		}
		ev.paths = append(ev.paths, names[start:end-1]...)
		end = start
	}
	p.Text = ev.paths[from:len(ev.paths):len(ev.paths)]
	return p
}

func (ev *Event) decodeSocket(b []byte) {
	ev.Socket = SocketInfo{
		Hook:     Hook(b[0]),
		Allowed:  b[1] != 0,
		Family:   order.Uint16(b[2:]),
		Type:     order.Uint16(b[4:]),
		Protocol: order.Uint16(b[6:]),
		Port:     order.Uint16(b[8:]),
	}
	switch ev.Socket.Family {
	case unix.AF_INET:
		ev.Socket.Addr = netip.AddrFrom4([4]byte(b[16:]))
	case unix.AF_INET6:
		ev.Socket.Addr = netip.AddrFrom16([16]byte(b[16:]))
	}
}

func (ev *Event) decodeUnix(b []byte) {
	ev.Socket = SocketInfo{Hook: Hook(b[0]), Allowed: b[1] != 0, Family: unix.AF_UNIX}
	ev.Socket.Text, _ = take(b[8:], int(order.Uint16(b[2:])))
}

// take splits n bytes off b, or what there is.
func take(b []byte, n int) (head, rest []byte) {
	n = min(n, len(b))
	if n == 0 {
		return nil, b
	}
	return b[:n:n], b[n:]
}

// text drops the zero byte that ends a string.
func text(b []byte) []byte {
	if n := len(b); n > 0 && b[n-1] == 0 {
		return b[:n-1]
	}
	return b
}
