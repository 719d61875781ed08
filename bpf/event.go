package bpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Type is the kind of an event.
type Type uint8

// Event types. What each fills is said at the fields of Event.
const (
	Exec     Type = iota + 1 // a program is in place: the kernel's copy of its arguments
	ExecArgs                 // the next part of the arguments of the same process's last Exec
	ExecFail                 // execve or execveat failed
	Fork                     // a task was born; the header names the parent
	Exit                     // the last thread of a process is gone
	Deny                     // a system call ended with EPERM, EACCES, EROFS or ENOSYS
	Listen                   // listen succeeded
	Socket                   // a cgroup hook judged a socket or an IP address
	Unix                     // a cgroup hook saw the address of a UNIX socket
	File                     // a file was opened or mapped
	Repeat                   // the thread did again what an earlier File with the same Slot says
	Call                     // a call that changes files succeeded, or one on files failed otherwise than Deny
	FD                       // a descriptor that the command was started with, after its Exec
	ExecEnv                  // the next part of the environment of the same process's last Exec
)

var typeNames = [...]string{
	Exec: "exec", ExecArgs: "exec_args", ExecFail: "exec_fail", Fork: "fork", Exit: "exit", Deny: "deny",
	Listen: "listen", Socket: "socket", Unix: "unix", File: "file", Repeat: "repeat", Call: "call", FD: "fd", ExecEnv: "exec_env",
}

// String is the type as the record's counts of lost events name it.
func (t Type) String() string {
	if int(t) < len(typeNames) && typeNames[t] != "" {
		return typeNames[t]
	}
	return fmt.Sprintf("type-%d", uint8(t))
}

// Lost is an event of the reader's own: numbers that were never read.
const Lost Type = eventTypes - 1

// Class says how an event competes for room in the ring: each class leaves the
// top of it to those above. A class of its own for processes keeps a flood of
// refused calls from pushing out the exec that it hides.
type Class uint8

// The classes, and how far each may fill the ring.
const (
	Bulk    Class = iota // File, Repeat, Call, datagrams: six eighths
	Control              // Exec, ExecArgs, ExecEnv, FD, Fork, Exit: all of it
	Verdict              // Deny, ExecFail, Listen, Socket, Unix: seven eighths
	classes
)

// String is the class as the record names it.
func (c Class) String() string {
	return [...]string{"bulk", "control", "verdict"}[c]
}

// Phase tells the command's acts from those of the sandbox's own setup: pid 1
// of the sandbox, and everything before the first execve of another task.
type Phase uint8

const (
	Envelope Phase = iota
	Command
)

// Flags qualify an event.
type Flags uint8

const (
	Unreadable Flags = 1 << iota // an argument could not be read from user memory
	Truncated                    // a text was longer than what is recorded
	Compat                       // a 32-bit system call: NR is of that table
	Thread                       // Fork: the child is a thread of the same process
	Soon                         // the reader was woken at once
)

// Hook is where a cgroup program ran.
type Hook uint8

const (
	HookConnect Hook = iota + 1
	HookSendmsg      // a datagram with an address
	HookBind
	HookSocket // creation of an INET or INET6 socket
	HookEgress // a packet to another destination than loopback: no process is named
)

// Event is one record. The slices point into the reader's buffer.
//
// Fields whose comment says "user" were read from the caller's memory when the
// call had ended: another thread may have changed them.
type Event struct {
	Type  Type
	Class Class
	Phase Phase
	Flags Flags
	CPU   int
	Run   uint64 // leaf cgroup id
	Seq   uint64 // per run and CPU from 0, without gaps: a missing number is a lost event
	Late  bool   // it came so late that it was delivered as Lost before
	Time  uint64 // CLOCK_BOOTTIME, ns
	Start uint64 // CLOCK_BOOTTIME at which the process (its group leader) began, ns: with TGID and the boot id, proof against pid reuse
	TGID  uint32 // process, host pid namespace; 0 where no process is known
	TID   uint32 // thread
	UID   uint32 // real uid, host user namespace
	NR    int    // system call; -1 where none is meant
	Ret   int64  // its result, -errno where it failed

	Exec   ExecInfo   // Exec, ExecArgs, ExecEnv
	Fork   ForkInfo   // Fork
	Exit   ExitInfo   // Exit
	Call   CallInfo   // Deny, ExecFail, Call
	File   FileInfo   // File, Repeat, FD
	Socket SocketInfo // Socket, Unix, Listen
	Lost   Gap        // Lost

	paths []byte // where the names of kernel paths are put in order
}

// ExecInfo is what the kernel put in place.
type ExecInfo struct {
	File       []byte // as given to execve; /dev/fd/N and the like for execveat
	Interp     []byte // nil, or File is a script (or of binfmt_misc) that names this interpreter
	Image      Path   // of the executable that runs: of a script, its interpreter
	Args       []byte // arguments, each ended by a zero byte; the part from Offset on
	Env        []byte // ExecEnv: the part of the environment from Offset on
	Offset     uint32
	ArgsLen    uint32 // bytes of all arguments; beyond 128 KiB they are not recorded (Truncated)
	EnvLen     uint32 // bytes of the environment; beyond 64 KiB it is not recorded (Truncated)
	Argc       uint32
	Dev        uint64 // of the image, as in stat
	Inode      uint64
	Ctime      int64  // of the image, ns since the Unix epoch
	Mode       uint16 // st_mode
	GID        uint32 // real gid, host user namespace
	PPID       uint32 // host
	ParentTime uint64 // Start of the parent
	NSPID      uint32 // the process in its own pid namespace
}

// Path is built from the kernel's objects, as the task itself would name it.
type Path struct {
	Text []byte // begins with "/" unless it is not Rooted or cut
	Full uint32 // bytes of the whole path; more than len(Text) where its beginning is cut
	// Rooted says that the walk reached the task's root. Pipes, memfds and what
	// lies outside the root have a name only.
	Rooted  bool
	Deleted bool // the name is gone
}

// FileInfo is a file that was opened or mapped.
type FileInfo struct {
	Path    Path
	Given   []byte // user; nil where the call has none
	How     How
	Object  bool // the mapping's own file; else it was looked up by descriptor when the call had ended
	Dev     uint64
	Inode   uint64
	Ctime   int64     // ns since the Unix epoch; not for MappedWrite
	Mode    uint16    // st_mode
	FMode   uint32    // f_mode of the kernel
	Args    [6]uint64 // registers; for openat2 the third and fourth are its flags and mode (user)
	Resolve uint64    // openat2, user
	Slot    uint8     // names the File that a later Repeat of the same thread means; 255: none
	Count   uint64    // Repeat: how often
}

// How a file was taken.
type How uint8

// What was done with a file.
const (
	Opened How = iota + 1
	MappedExec
	MappedWrite // shared and writable
)

// Bits of FileInfo.FMode (include/linux/fs.h).
const (
	FModeRead    = 1
	FModeWrite   = 2
	FModePath    = 0x4000
	FModeCreated = 0x100000
)

// ForkInfo is the child.
type ForkInfo struct {
	TGID, TID uint32
	NSPID     uint32 // in its own pid namespace
	Start     uint64 // of its process: CLOCK_BOOTTIME ns
}

// ExitInfo is how a process ended.
type ExitInfo struct {
	Status  unix.WaitStatus
	Utime   uint64 // ns, by timer tick; threads that end at the same instant may be missing
	Stime   uint64
	Runtime uint64 // ns on a CPU, by the scheduler
	MaxRSS  uint64 // bytes

	PPID       uint32 // host
	ParentTime uint64 // Start of the parent
}

// CallInfo is a system call.
type CallInfo struct {
	Args    [6]uint64 // registers; for openat2 the third and fourth are its flags and mode (user)
	Path    []byte    // user; nil where the call has none
	Path2   []byte    // user; the second path of rename, link and the like; the name of an attribute
	Addr    []byte    // user; raw struct sockaddr
	Dir     Path      // where a relative Path begins, when the call ended; or the file that the call names by descriptor
	Dir2    Path      // where a relative Path2 begins
	Dev     uint64    // of the file that the call names by descriptor
	Inode   uint64
	Resolve uint64 // openat2, user
}

// SocketInfo is what a hook judged.
type SocketInfo struct {
	Hook     Hook // 0 for Listen
	Allowed  bool
	Family   uint16
	Type     uint16
	Protocol uint16
	Port     uint16
	Addr     netip.Addr // Listen: looked up by descriptor after the call
	Text     []byte     // Unix: sun_path as given; abstract names begin with a zero byte
}

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
}

// Sizes of the fixed parts of struct ev_exec, ev_call and ev_file after the header.
const (
	execSize = 80
	callSize = 88
	fileSize = 96
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
