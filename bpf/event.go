package bpf

import (
	"fmt"
	"net/netip"

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
	Repeat                   // the thread did again what an earlier File with the same Slot says (decision 0012)
	Call                     // a call that changes files succeeded, or one on files failed otherwise than Deny
	FD                       // a descriptor that the command was started with, after its Exec
	ExecEnv                  // the next part of the environment of the same process's last Exec
	Receive                  // a descriptor came in by a UNIX socket
	Object                   // what the thread's call is about, told before the call's own event: see CallInfo.Object
)

var typeNames = [...]string{
	Exec: "exec", ExecArgs: "exec_args", ExecFail: "exec_fail", Fork: "fork", Exit: "exit", Deny: "deny",
	Listen: "listen", Socket: "socket", Unix: "unix", File: "file", Repeat: "repeat", Call: "call", FD: "fd", ExecEnv: "exec_env",
	Receive: "receive", Object: "object",
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
// refused calls from pushing out the exec that it hides (decision 0009).
type Class uint8

// The classes, and how far each may fill the ring.
const (
	Bulk    Class = iota // File, Repeat, Call, Receive, Object, datagrams: six eighths
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

// The two phases of a run.
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
	Filtered                     // the thread has a seccomp filter of the command's own, which may have answered the call
)

// Hook is where a cgroup program ran.
type Hook uint8

const (
	HookConnect Hook = iota + 1 // connect(2)
	HookSendmsg                 // a datagram with an address
	HookBind                    // bind(2)
	HookSocket                  // creation of an INET or INET6 socket
	HookEgress                  // a packet to another destination than loopback: no process is named
	HookIngress                 // a connection that came in where nothing may listen: likewise; the address is what it came to
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
	CPU   int    // that recorded it
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
	File   FileInfo   // File, Repeat, FD, Receive
	Object ObjectInfo // Object
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
	Object  bool // the mapping's own file, or the descriptor was looked up when the call had ended and no other thread could have changed it
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
	MappedAnon  // to be executed, and of no file
	MappedCopy  // to be executed; pages of it may be the process's own copies of the file's
)

// Bits of FileInfo.FMode (include/linux/fs.h).
const (
	FModeRead    = 1
	FModeWrite   = 2
	FModePath    = 0x4000
	FModeCreated = 0x100000
)

// ForkInfo is the child: TGID and TID as the host numbers them.
type ForkInfo struct {
	TGID, TID uint32
	NSPID     uint32 // in its own pid namespace
	Start     uint64 // of its process: CLOCK_BOOTTIME ns
}

// ExitInfo is how a process ended.
type ExitInfo struct {
	Status  unix.WaitStatus // as wait4(2) tells it
	Utime   uint64          // ns, by timer tick; threads that end at the same instant may be missing
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
	Object  uint64 // Time of the Object event of the same thread that belongs to the call; 0: none
	Refused Refusal
}

// Refusal is what Landlock itself says of a call that it refused (Linux 7.3).
// The zero value: it did not say so.
type Refusal struct {
	By     RefusedBy
	Own    bool   // by a domain that the command has put itself into
	Access uint32 // what was not granted: LANDLOCK_ACCESS_FS_* or _NET_*
}

// RefusedBy is a part of Landlock.
type RefusedBy uint8

// Parts of Landlock, as enum landlock_request_type (security/landlock/audit.h).
const (
	RefusedPtrace RefusedBy = iota + 1
	RefusedTopology
	RefusedFS
	RefusedNet
	RefusedAbstract
	RefusedSignal
)

// ObjectInfo is what a call is about, by the kernel's own objects, seen before
// the call acted.
type ObjectInfo struct {
	Path  Path   // the name that the call is about
	Path2 Path   // the new name of rename, link and symlink
	Text  []byte // the kernel's copy of the target of symlink, or of an attribute's name
	Dev   uint64 // of what Path leads to, if there is something
	Inode uint64
	// Refused says that Path is not the name but what Landlock refused: a file,
	// or the directory of a name (by Refusal.Access).
	Refused bool
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
