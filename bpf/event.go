package bpf

import (
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
)

var typeNames = [...]string{
	Exec: "exec", ExecArgs: "exec_args", ExecFail: "exec_fail", Fork: "fork", Exit: "exit", Deny: "deny",
	Listen: "listen", Socket: "socket", Unix: "unix",
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
	Bulk    Class = iota // what a command can do most of, such as datagrams: six eighths
	Control              // Exec, ExecArgs, Fork, Exit: all of it
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

	Exec   ExecInfo   // Exec, ExecArgs
	Fork   ForkInfo   // Fork
	Exit   ExitInfo   // Exit
	Call   CallInfo   // Deny, ExecFail
	Socket SocketInfo // Socket, Unix, Listen
	Lost   Gap        // Lost
}

// ExecInfo is what the kernel put in place.
type ExecInfo struct {
	File       []byte // as given to execve; of a script, the script; /dev/fd/N for execveat
	Args       []byte // arguments, each ended by a zero byte; the part from ArgsOffset on
	ArgsOffset uint32
	ArgsLen    uint32 // bytes of all arguments; beyond 128 KiB they are not recorded (Truncated)
	Argc       uint32
	Dev        uint64 // of the executable that runs (of a script: its interpreter), as in stat
	Inode      uint64
	GID        uint32 // real gid, host user namespace
	PPID       uint32 // host
	NSPID      uint32 // the process in its own pid namespace
}

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
}

// CallInfo is a refused system call.
type CallInfo struct {
	Args  [6]uint64 // registers
	Path  []byte    // user; nil where the call has none
	Path2 []byte    // user; the second path of rename, link and the like
	Addr  []byte    // user; raw struct sockaddr
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
	Exec:     {40, (*Event).decodeExec},
	ExecArgs: {8, (*Event).decodeArgs},
	ExecFail: {56, (*Event).decodeCall},
	Fork:     {24, (*Event).decodeFork},
	Exit:     {40, (*Event).decodeExit},
	Deny:     {56, (*Event).decodeCall},
	Listen:   {32, (*Event).decodeSocket},
	Socket:   {32, (*Event).decodeSocket},
	Unix:     {8, (*Event).decodeUnix},
}

func (ev *Event) decodeExec(b []byte) {
	dev := order.Uint32(b[8:])
	ev.Exec = ExecInfo{
		Inode:   order.Uint64(b),
		Dev:     unix.Mkdev(dev>>20, dev&0xfffff),
		GID:     order.Uint32(b[12:]),
		PPID:    order.Uint32(b[16:]),
		NSPID:   order.Uint32(b[20:]),
		Argc:    order.Uint32(b[24:]),
		ArgsLen: order.Uint32(b[28:]),
	}
	file, chunk := order.Uint16(b[32:]), order.Uint16(b[34:])
	ev.Exec.File, b = take(b[40:], int(file))
	ev.Exec.File = text(ev.Exec.File)
	ev.Exec.Args, _ = take(b, int(chunk))
}

func (ev *Event) decodeArgs(b []byte) {
	ev.Exec.ArgsOffset = order.Uint32(b)
	ev.Exec.Args, _ = take(b[8:], int(order.Uint32(b[4:])))
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
	}
}

func (ev *Event) decodeCall(b []byte) {
	for i := range ev.Call.Args {
		ev.Call.Args[i] = order.Uint64(b[8*i:])
	}
	path, path2, addr := order.Uint16(b[48:]), order.Uint16(b[50:]), order.Uint16(b[52:])
	ev.Call.Path, b = take(b[56:], int(path))
	ev.Call.Path2, b = take(b, int(path2))
	ev.Call.Addr, _ = take(b, int(addr))
	ev.Call.Path, ev.Call.Path2 = text(ev.Call.Path), text(ev.Call.Path2)
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
