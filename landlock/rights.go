// Package landlock turns grants into one Landlock ruleset for a run.
//
// It is strict: the rights that a kernel knows are all handled, a right that a
// kernel lacks is reported by [Missing], and nothing is dropped in silence.
// The ruleset is made by the supervisor and enforced by the run's own process
// (landlock_restrict_self(2)); rules on detached mounts keep matching after
// the mounts are attached, because Landlock ties rules to inodes.
//
// Sources: Documentation/userspace-api/landlock.rst and
// include/uapi/linux/landlock.h of the kernel; constants from
// github.com/landlock-lsm/go-landlock.
package landlock

import (
	"encoding/binary"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// Kind is what a grant lets the command do with a file hierarchy.
type Kind uint8

// The closed set of grants. What each means in rights is the table below.
const (
	List   Kind = iota // list directories: the synthetic root and its directories
	Read               // read, list and execute
	Write              // everything inside: read, write, execute, create, remove, rename
	Device             // read and write a device node (or those of a directory) and its ioctls
	Proc               // read and list: a write to /proc/PID/mem could forge what the record reads from an exec
	Plain              // read and list; nothing is executed
	Socket             // connect to one unix socket of the host
)

// Groups of rights by the ABI that brought them. The rows are the kernel's:
// rights[i] came with ABI rights[i].abi.
var rights = []struct {
	abi    int // first ABI that has the right
	kernel string
	fs     uint64
	what   string // what is not guarded before
}{
	{1, "5.13", 1<<13 - 1, "files"},
	{2, "5.19", ll.AccessFSRefer, "renames between directories"},
	{3, "6.2", ll.AccessFSTruncate, "truncation"},
	{5, "6.10", ll.AccessFSIoctlDev, "ioctls of devices"},
	{9, "7.1", ll.AccessFSResolveUnix, "pathname unix sockets"},
}

// scopes lists the scope flags by ABI.
var scopes = []struct {
	abi    int
	kernel string
	bits   uint64
	what   string
}{
	{6, "6.12", ll.ScopeAbstractUnixSocket | ll.ScopeSignal, "abstract unix sockets and signals leaving the run"},
}

const (
	readRights  = ll.AccessFSExecute | ll.AccessFSReadFile | ll.AccessFSReadDir
	writeRights = 1<<15 - 1 // everything up to ABI 3: never RESOLVE_UNIX, whose sockets are the host's
	fileRights  = ll.AccessFSExecute | ll.AccessFSReadFile | ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSIoctlDev | ll.AccessFSResolveUnix
)

var kindRights = map[Kind]uint64{
	List:   ll.AccessFSReadDir,
	Read:   readRights,
	Write:  writeRights,
	Device: ll.AccessFSReadFile | ll.AccessFSReadDir | ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSIoctlDev,
	Proc:   ll.AccessFSReadFile | ll.AccessFSReadDir,
	Plain:  ll.AccessFSReadFile | ll.AccessFSReadDir,
	Socket: ll.AccessFSResolveUnix,
}

// Handled returns every file-system right that ABI abi knows: the ruleset
// handles them all, so that what no rule grants is refused.
func Handled(abi int) uint64 {
	var fs uint64
	for _, r := range rights {
		if abi >= r.abi {
			fs |= r.fs
		}
	}
	return fs
}

// Scoped returns the scope flags of ABI abi.
func Scoped(abi int) uint64 {
	var bits uint64
	for _, s := range scopes {
		if abi >= s.abi {
			bits |= s.bits
		}
	}
	return bits
}

// Missing says in words what ABI abi cannot guard, with the kernel that can.
func Missing(abi int) []string {
	var out []string
	for _, r := range rights {
		if abi < r.abi {
			out = append(out, r.what+" (Linux "+r.kernel+")")
		}
	}
	for _, s := range scopes {
		if abi < s.abi {
			out = append(out, s.what+" (Linux "+s.kernel+")")
		}
	}
	return out
}

// Rights returns what kind grants under ABI abi. dir tells a hierarchy from a
// single file: the kernel refuses directory rights on a file with EINVAL.
func Rights(kind Kind, abi int, dir bool) uint64 {
	r := kindRights[kind] & Handled(abi)
	if !dir {
		r &= fileRights
	}
	return r
}

// attrSize is the size of the packed struct landlock_path_beneath_attr.
const attrSize = 12

// ParentFDOffset is where the descriptor lies in the bytes of [PathBeneath].
const ParentFDOffset = 8

// PathBeneath returns struct landlock_path_beneath_attr for a rule that the
// run's own process adds, with room for the descriptor at [ParentFDOffset].
func PathBeneath(access uint64) []byte {
	b := make([]byte, attrSize)
	binary.LittleEndian.PutUint64(b, access)
	return b
}
