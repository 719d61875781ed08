// Package trace is the record of a run: its events, the writer that appends
// them as JSON lines, the reader that judges a record, and the text views.
//
// The package is portable, so that a record can be read on any system, and it
// imports nothing else of this module. docs/record.md documents every field.
package trace

import (
	"net/netip"
	"slices"
	"strconv"
)

// Version is the schema version written as "v" into every record. Fields may
// be added without changing it; a changed meaning or type changes it.
const Version = 1

// Kind says what happened. A refused act keeps the kind of the act (a refused
// open is KindOpen with VerdictDeny); KindDeny is for refused system calls that
// have no kind of their own.
type Kind string

// The kinds of records, see docs/record.md.
const (
	KindStart      Kind = "start"       // first record: run, host, versions
	KindExec       Kind = "exec"        // a new program image, after the kernel accepted it
	KindExecFail   Kind = "exec_fail"   // execve that returned an error
	KindFork       Kind = "fork"        // a new process or thread; Child is the new task
	KindExit       Kind = "exit"        // the last thread of a process has ended
	KindOpen       Kind = "open"        // open without creation
	KindCreate     Kind = "create"      // open that may have made the file (O_CREAT, O_TMPFILE, mknod)
	KindUnlink     Kind = "unlink"      // unlink and rmdir
	KindRename     Kind = "rename"      // Path to To
	KindLink       Kind = "link"        // hard or symbolic link To, of Path
	KindMkdir      Kind = "mkdir"       //
	KindTruncate   Kind = "truncate"    //
	KindChmod      Kind = "chmod"       //
	KindChown      Kind = "chown"       //
	KindSetxattr   Kind = "setxattr"    // setxattr and removexattr; Name is the attribute
	KindMmapExec   Kind = "mmap_exec"   // executable mapping of a file
	KindMmapWrite  Kind = "mmap_write"  // shared writable mapping of a file: it may change without a call
	KindCode       Kind = "code"        // a file whose content was executed, by its digest
	KindInherit    Kind = "inherit"     // a descriptor that the command was started with
	KindReceive    Kind = "receive"     // a descriptor came in by a unix socket
	KindConnect    Kind = "connect"     //
	KindBind       Kind = "bind"        //
	KindListen     Kind = "listen"      //
	KindSend       Kind = "send"        // datagram to an address that was not connected
	KindDNS        Kind = "dns"         // Name is the name that was asked for
	KindCall       Kind = "call"        // an HTTP request to the broker Name; with VerdictDeny it was not sent
	KindSocket     Kind = "socket"      //
	KindSignal     Kind = "signal"      // Target is the receiver
	KindCgroupMove Kind = "cgroup_move" // Path is the new cgroup
	KindLimit      Kind = "limit"       // a limit of the run was met
	KindDeny       Kind = "deny"        // a refused system call with no kind of its own
	KindLoss       Kind = "loss"        // records that are missing here
	KindCanary     Kind = "canary"      // one probe of the canary; VerdictDeny means that the layer bites
	KindOutput     Kind = "output"      // total of one output stream
	KindSummary    Kind = "summary"     // last record: counts, usage, status
)

// kinds lists every kind that this version writes.
var kinds = [...]Kind{
	KindStart, KindExec, KindExecFail, KindFork, KindExit, KindOpen, KindCreate, KindUnlink,
	KindRename, KindLink, KindMkdir, KindTruncate, KindChmod, KindChown, KindSetxattr,
	KindMmapExec, KindMmapWrite, KindCode, KindInherit, KindReceive, KindConnect, KindBind, KindListen, KindSend, KindDNS, KindCall, KindSocket,
	KindSignal, KindCgroupMove, KindLimit, KindDeny, KindLoss, KindCanary, KindOutput,
	KindSummary,
}

// Kinds returns every kind that this version writes, in the order of
// docs/record.md.
func Kinds() []Kind { return slices.Clone(kinds[:]) }

// bulk reports whether a command can make records of this kind faster than any
// record has room for.
func (k Kind) bulk() bool {
	switch k {
	case KindOpen, KindCreate, KindMmapExec, KindMmapWrite, KindTruncate, KindChmod, KindChown,
		KindSetxattr, KindUnlink, KindRename, KindLink, KindMkdir, KindReceive, KindSend:
		return true
	}
	return false
}

// Phase says whose act it was: the launcher's own steps and the canary are not
// the command's.
type Phase string

// The phases of a run.
const (
	PhaseEnvelope Phase = "envelope" // before the execve of the command
	PhaseCommand  Phase = "command"
)

// PathSource says how far a path can be trusted.
type PathSource string

// The sources of a path.
const (
	PathKernel     PathSource = "kernel"     // built from the kernel's own objects
	PathUser       PathSource = "user"       // read from the caller's memory: another thread may have changed it
	PathFDExit     PathSource = "fd-exit"    // from the new descriptor at the end of the call: dup2 may have replaced it
	PathUnreadable PathSource = "unreadable" // the memory could not be read: no path
)

// Verdict is the outcome of an act that the envelope judges.
type Verdict string

// The verdicts.
const (
	VerdictAllow Verdict = "allow"
	VerdictDeny  Verdict = "deny"
)

// Layer names what refused an act.
type Layer string

// The layers.
const (
	LayerLandlock Layer = "landlock"
	LayerSeccomp  Layer = "seccomp"
	LayerBPF      Layer = "bpf"
	LayerMount    Layer = "mount" // read-only or absent in the view
	LayerDAC      Layer = "dac"   // ordinary permissions and capabilities
	LayerLimit    Layer = "limit"
	LayerNetwork  Layer = "network" // the run's resolver and relay: the edge of its network namespace
	LayerNone     Layer = "none"    // refused, and no layer of ours would have
)

// Certainty says how the layer of a denial is known.
type Certainty string

// The certainties.
const (
	Certain  Certainty = "certain"  // the refusing layer reported it
	Inferred Certainty = "inferred" // concluded from the errno and the plan
)

// Proc identifies a task. Pids are reused; (Boot, Start, Pid) is not.
type Proc struct {
	Boot   string // first 8 characters of the boot id; the Writer fills it when empty
	Pid    uint32 // process (thread group) id in the host's pid namespace; 0: no process
	Tid    uint32 // thread id on the host; 0 means Pid
	NSPid  uint32 // process id as the command sees it; 0 unknown
	PPid   uint32 // parent's process id on the host; 0 unknown
	UID    uint32 // real uid in the host's user namespace
	Start  uint64 // start of the process, ns of CLOCK_BOOTTIME
	PStart uint64 // start of the parent, ns; 0 unknown
}

// ID renders the identity that pid reuse cannot forge:
// "<boot>-<start>-<pid>", or "" when there is no process.
func (p Proc) ID() string { return string(p.AppendID(nil)) }

// AppendID appends what ID returns to b.
func (p Proc) AppendID(b []byte) []byte { return appendID(b, p.Boot, p.Start, p.Pid) }

func appendID(b []byte, boot string, start uint64, pid uint32) []byte {
	if pid == 0 {
		return b
	}
	for i := 0; i < len(boot); i++ { // the id stands in JSON unescaped
		c := boot[i]
		if c < '0' || c > '9' && c < 'A' || c > 'Z' && c < 'a' || c > 'z' {
			c = '_'
		}
		b = append(b, c)
	}
	b = append(b, '-')
	b = strconv.AppendUint(b, start, 10)
	b = append(b, '-')
	return strconv.AppendUint(b, uint64(pid), 10)
}

// Loss says that records are missing, and where.
type Loss struct {
	Class     string // what: a Kind, or "any"; "" means no loss
	Cause     string // why: "ring", "recursion", "max_bytes", "disk", "too_long", ...
	Count     uint64 // records
	Bytes     uint64 // of those records, 0 unknown
	AfterSeq  uint64 // the missing records come after this one
	BeforeSeq uint64 // and before this one; 0: anywhere up to this record
	CPU       int32  // CPU that dropped them; -1: not one CPU
	First     uint64 // they are Count of that CPU's numbers (Event.CPUSeq) from this one
	Last      uint64 // to this one; 0: not known
}

// Count is one counter of a summary: Name, for example "syscall.read", and N, how often.
type Count struct {
	Name string
	N    uint64
}

// ExitUnknown is the exit code of a process that has ended and of which is not known how.
const ExitUnknown = -1

// Event is one record. The zero value of a field means "absent" unless its
// comment says otherwise. Byte slices may be reused by the caller as soon as
// Append returns; those of an Event filled by a Reader are valid until its next
// call of Next.
type Event struct {
	Seq   uint64 // 1, 2, 3 ... per run; assigned by the Writer
	Mono  uint64 // ns of CLOCK_BOOTTIME
	Wall  int64  // ns since the Unix epoch, Mono plus one offset; assigned by the Writer
	Kind  Kind
	Phase Phase

	// CPU and CPUSeq say which record of the kernel's this one was made of:
	// 1, 2, 3 ... per run and CPU. CPUSeq 0: of none, and CPU means nothing.
	CPU    uint32
	CPUSeq uint64

	Proc   Proc   // who
	Comm   []byte // task name: chosen by the task, proves nothing
	Child  Proc   // fork: the new task
	Target Proc   // signal: the receiver

	Syscall   string // name
	SyscallNr int32  // present when Syscall is, or when not 0
	Ret       int64  // return value when it is not an error
	Errno     int32  // positive error number
	Count     uint64 // how many equal acts this record stands for; 0 means 1

	Path       []byte // absolute as the command sees it when PathSource is kernel, else as it was written
	PathSource PathSource
	PathLen    uint32 // full length in bytes when Path is cut, else 0
	PathGiven  []byte // as the command wrote it, when Path is not that
	To         []byte // second path of rename and link
	ToLen      uint32 // as PathLen
	ToGiven    []byte // as PathGiven
	Access     string // "r", "w", "rw", "x" or "path"
	Flags      uint64 // raw flags of the call
	Resolve    uint64 // resolve flags of openat2
	Mode       uint32 // permission bits asked for or set
	NewUID     int64  // chown, always written: -1 leaves it; as the command's user namespace numbers it
	NewGID     int64  // as NewUID
	DevMajor   uint32
	DevMinor   uint32
	Ino        uint64
	Ctime      int64  // ns since the Unix epoch: with the device and the inode, the version of a content
	FD         int32  // inherit and receive: the descriptor, always written
	Memfd      bool   // the file is anonymous memory (memfd_create)
	Deleted    bool   // the file has no name any more
	Filtered   bool   // what the call ended with may be the answer of a seccomp filter of the command's own
	Anon       bool   // mmap_exec: the memory is the process's own, wholly or in part, and no file says what it holds
	Name       []byte // name asked for (dns), attribute (setxattr)
	NameLen    uint32 // as PathLen

	Argv    [][]byte // the program's name first
	Argc    uint32   // number of arguments given; 0 means len(Argv)
	ArgvLen uint64   // bytes of all arguments without the NULs when Argv is cut, else 0

	Env    [][]byte // exec: names of the environment, never values
	EnvLen uint64   // bytes of the whole environment when Env is cut, else 0
	Script []byte   // exec: the script, when Path is its interpreter
	Interp []byte   // exec: the interpreter that the script names
	// ScriptSHA256 is the digest of Script, when its execve waited for it; lower-case hex.
	ScriptSHA256 string

	Family string // "inet", "inet6", "unix", "netlink", "packet", ...
	Proto  string // "tcp", "udp", ...
	Addr   netip.Addr
	Port   uint16
	Bytes  uint64 // sent by this act, or total of an output stream

	Received uint64 // connect, when it has ended, and call: bytes that came back
	Duration uint64 // connect, when it has ended, and call: ns
	End      string // connect: how it ended, "closed", "reset", "idle", "limit", "failed", "refused" or "run"

	Method     string // call
	Status     uint32 // call: of the answer; when refused, of ours
	Hidden     uint64 // call: how often the answer held the credential, which was overwritten
	Credential string // call: keyed digest of where the credential is from; lower-case hex

	Limit      string // name of the limit: "memory", "tasks", "cpu", "wall", "output", ...
	LimitValue uint64 // bytes, count or ns
	LimitHits  uint64
	Probe      string // canary: which probe

	Verdict    Verdict
	Layer      Layer
	Rule       string // policy clause, for example "filesystem.read_only_mounts"
	RuleSource string // FILE:LINE:COL, "flag --ro" or "default"
	Remedy     string // the flag that would allow it, shell-quoted; never for credentials
	Certainty  Certainty
	Blockers   string // what Landlock did not grant, by itself: "fs.read_file", several with commas

	ExitCode int32 // always written for exit and summary unless Signal is set; ExitUnknown
	Signal   int32 // number that ended the process, or that was sent
	Core     bool
	UTime    uint64 // ns
	STime    uint64 // ns
	MaxRSS   uint64 // bytes
	Reason   string // why the run ended: "exit", "signal", "wall", "cpu", "memory", "output", "loss", "hidden", "error"

	Stream string // "stdout" or "stderr"
	Kept   uint64 // bytes of the stream that the record keeps
	SHA256 string // lower-case hex: of the stream, or of the content that was executed
	// HashState says what SHA256 is worth: "ok", "too_big", "raced", "memfd",
	// "fuse", "limit" or "error".
	HashState string

	Loss Loss

	Run        string // run id
	BootID     string
	Tool       string // version of agentguard
	Kernel     string // release
	Tier       string // sensor tier
	PlanSHA256 string // lower-case hex
	// Degraded are guarantees that the run did not have, each with why and what would
	// change it: start. A record with any is never complete.
	Degraded []string

	Text    string  // a remark of ours
	Records uint64  // summary: records before it
	Lost    uint64  // summary: records lost in all
	Counts  []Count // summary
	// Findings are reasons, besides lost records, why the record may lack
	// something: summary. A record with any is incomplete.
	Findings []string
}

// Denied reports whether the act was refused to the command: the launcher's
// own probes are refused by intent and are not denials.
func (e *Event) Denied() bool {
	return e.Verdict == VerdictDeny && e.Kind != KindCanary && e.Phase != PhaseEnvelope
}

// Times returns how many equal acts the record stands for, at least 1.
func (e *Event) Times() uint64 { return max(e.Count, 1) }

// AccessOf names the access that open(2) flags ask for. The low two bits mean
// the same on every architecture.
func AccessOf(flags uint64) string {
	switch flags & 3 {
	case 0:
		return "r"
	case 1:
		return "w"
	case 2:
		return "rw"
	}
	return "path"
}
