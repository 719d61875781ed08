//go:build linux

package notify

import "golang.org/x/sys/unix"

// Type is the kind of an event.
type Type uint8

// The types.
const (
	Exec    Type = iota + 1 // execve or execveat
	Exit                    // a process has ended
	Connect                 // connect(2); whether it succeeds is not known
	Bind                    // bind(2), likewise
	Send                    // sendto(2) with an address, likewise
	Refused                 // a call that was answered with an error
	Fork                    // Child was seen for the first time; Process is its parent then, which may not be who made it
)

// Outcome says what came of an execve.
type Outcome uint8

// The outcomes.
const (
	Unknown Outcome = iota // nothing was seen of the process after it
	Done                   // another image is in place: Event.Image
	Failed                 // the same thread makes calls in the image that it had
)

// Event is one call, or the end of a process. What is read from the caller's memory
// is said to be so: another thread may have changed it before the kernel read it.
type Event struct {
	Type Type
	Time uint64 // CLOCK_BOOTTIME, ns: when the call was received
	Process
	TID      uint32     // the thread, as our pid namespace numbers it
	NR       int        // system call; -1: none
	Args     [6]uint64  // its registers
	Errno    unix.Errno // Refused: the answer; of an Exec that Failed what a look for its file says now, 0: nothing
	Count    uint64     // Refused, Send: of so many more that were equal to the one before; 0: of this one
	Launcher bool       // before the first thread that was seen had executed a program

	Path       []byte // memory: Exec, and Refused for Config.Paths
	Dir        []byte // where a relative Path begins, by the kernel; of an empty one, the file itself
	DirDeleted bool   // that has no name any more
	Cut        bool   // Path is longer than PATH_MAX
	Unreadable bool   // Path or Addr could not be read
	Hidden     bool   // nor anything else of the caller's memory: it is not dumpable, and we lack CAP_SYS_PTRACE over it

	Argv [][]byte // memory: Exec
	Argc uint32   // how many there are, when Argv is cut: at least
	Env  [][]byte // memory, Exec: names of the environment, never values
	// More arguments, or names, than were read: the bound was met or memory could not be read.
	ArgvCut, EnvCut bool
	// Argv is what the program had when it was looked at (proc_pid_cmdline(5), which anybody may read), and which it
	// can have changed: of a Hidden caller. Where Outcome is Unknown it may be by the program before, too.
	ArgvLater bool

	Outcome Outcome // Exec
	Image   Image   // Exec, Done; of a Hidden caller also Unknown: the one that it runs by then

	Addr []byte // memory, Connect, Bind, Send: raw struct sockaddr

	Child Process // Fork

	Status      unix.WaitStatus // Exit
	StatusKnown bool            // Exit; otherwise only that it ended
	User        uint64          // Exit, by exit_group(2): CPU time until then, ns in steps of 10 ms
	System      uint64          // likewise
}

// Process is who makes the call, as /proc tells it.
type Process struct {
	PID   uint32 // thread group, in our pid namespace
	NSPID uint32 // in its own pid namespace
	PPID  uint32 // when it was first seen
	UID   uint32 // real uid, in our user namespace
	// Start is CLOCK_BOOTTIME at which the process began, ns, rounded down to the 10 ms
	// that /proc has: the kernel gives no pid out twice in that time.
	Start       uint64
	ParentStart uint64 // of PPID; 0 unknown
}

// Image is the file that a process runs, by the kernel.
type Image struct {
	Path    []byte // as it is called in the process's own mount namespace
	Deleted bool   // it has no name any more; Path is the one that it had
	Dev     uint64 // as in stat
	Inode   uint64
	Ctime   int64 // ns since the Unix epoch
}
