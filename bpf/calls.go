package bpf

import (
	"sync"

	"golang.org/x/sys/unix"
)

// callInfo is struct call_info of c/abi.h: argument numbers count from 1, 0 is none.
type callInfo struct {
	Path, Path2, Addr, Flags uint8
	File                     uint8 // descriptor that is written to
	Extent                   uint8 // length that a file is made to reach
}

// Flags of callInfo, as enum call_flags.
const (
	callBytes  = 1 << iota // the result counts bytes
	callExec               // every failure is recorded
	callProbed             // ENOSYS is ordinary feature probing
	callMsghdr             // Addr is a struct msghdr
	callListen             // success is recorded
	callQuiet              // EPERM means something else than a refusal
	callWrites             // File or Extent is set
)

// callCount is the number of system calls that are counted one by one.
const callCount = 512

// callTable tells the programs how to treat each system call of this architecture.
var callTable = sync.OnceValue(func() [callCount]callInfo {
	var table [callCount]callInfo
	for nr, info := range commonCalls {
		table[nr] = info
	}
	for nr, info := range archCalls {
		table[nr] = info
	}
	return table
})

// commonCalls are those that amd64 and arm64 both have.
var commonCalls = map[int]callInfo{
	unix.SYS_READ:     {Flags: callBytes},
	unix.SYS_PREAD64:  {Flags: callBytes},
	unix.SYS_READV:    {Flags: callBytes},
	unix.SYS_PREADV:   {Flags: callBytes},
	unix.SYS_PREADV2:  {Flags: callBytes},
	unix.SYS_WRITE:    {File: 1, Flags: callBytes | callWrites},
	unix.SYS_PWRITE64: {File: 1, Flags: callBytes | callWrites},
	unix.SYS_WRITEV:   {File: 1, Flags: callBytes | callWrites},
	unix.SYS_PWRITEV:  {File: 1, Flags: callBytes | callWrites},
	unix.SYS_PWRITEV2: {File: 1, Flags: callBytes | callWrites},
	unix.SYS_RECVFROM: {Flags: callBytes},
	unix.SYS_RECVMSG:  {Flags: callBytes},
	unix.SYS_SENDTO:   {Addr: 5, Flags: callBytes},
	unix.SYS_SENDMSG:  {Addr: 2, Flags: callBytes | callMsghdr},
	unix.SYS_SENDMMSG: {Addr: 2, Flags: callMsghdr}, // the first message; the result counts messages
	unix.SYS_SENDFILE: {File: 1, Flags: callBytes | callWrites},
	unix.SYS_SPLICE:   {File: 3, Flags: callBytes | callWrites},
	unix.SYS_TEE:      {Flags: callBytes},
	unix.SYS_VMSPLICE: {Flags: callBytes},

	unix.SYS_COPY_FILE_RANGE: {File: 3, Flags: callBytes | callWrites},

	unix.SYS_CONNECT: {Addr: 2},
	unix.SYS_BIND:    {Addr: 2},
	unix.SYS_LISTEN:  {Flags: callListen},

	unix.SYS_EXECVE:   {Path: 1, Flags: callExec},
	unix.SYS_EXECVEAT: {Path: 2, Flags: callExec},

	unix.SYS_OPENAT:            {Path: 2},
	unix.SYS_OPENAT2:           {Path: 2},
	unix.SYS_NAME_TO_HANDLE_AT: {Path: 2},
	unix.SYS_TRUNCATE:          {Path: 1, Extent: 2, Flags: callWrites},
	unix.SYS_FTRUNCATE:         {File: 1, Extent: 2, Flags: callWrites},
	unix.SYS_FALLOCATE:         {File: 1, Extent: 4, Flags: callWrites},
	unix.SYS_MKDIRAT:           {Path: 2},
	unix.SYS_MKNODAT:           {Path: 2},
	unix.SYS_UNLINKAT:          {Path: 2},
	unix.SYS_RENAMEAT:          {Path: 2, Path2: 4},
	unix.SYS_RENAMEAT2:         {Path: 2, Path2: 4},
	unix.SYS_LINKAT:            {Path: 2, Path2: 4},
	unix.SYS_SYMLINKAT:         {Path: 1, Path2: 3},
	unix.SYS_READLINKAT:        {Path: 2},
	unix.SYS_FCHMODAT:          {Path: 2},
	unix.SYS_FCHMODAT2:         {Path: 2},
	unix.SYS_FCHOWNAT:          {Path: 2},
	unix.SYS_UTIMENSAT:         {Path: 2},
	unix.SYS_FACCESSAT:         {Path: 2},
	unix.SYS_FACCESSAT2:        {Path: 2},
	unix.SYS_STATX:             {Path: 2},
	unix.SYS_STATFS:            {Path: 1},
	unix.SYS_CHDIR:             {Path: 1},
	unix.SYS_CHROOT:            {Path: 1},
	unix.SYS_SETXATTR:          {Path: 1},
	unix.SYS_LSETXATTR:         {Path: 1},
	unix.SYS_GETXATTR:          {Path: 1},
	unix.SYS_LGETXATTR:         {Path: 1},
	unix.SYS_LISTXATTR:         {Path: 1},
	unix.SYS_LLISTXATTR:        {Path: 1},
	unix.SYS_REMOVEXATTR:       {Path: 1},
	unix.SYS_LREMOVEXATTR:      {Path: 1},
	unix.SYS_INOTIFY_ADD_WATCH: {Path: 2},
	unix.SYS_FANOTIFY_MARK:     {Path: 5},
	unix.SYS_MOUNT:             {Path: 1, Path2: 2},
	unix.SYS_UMOUNT2:           {Path: 1},
	unix.SYS_PIVOT_ROOT:        {Path: 1, Path2: 2},
	unix.SYS_OPEN_TREE:         {Path: 2},
	unix.SYS_MOVE_MOUNT:        {Path: 2, Path2: 4},
	unix.SYS_FSPICK:            {Path: 2},
	unix.SYS_MOUNT_SETATTR:     {Path: 2},
	unix.SYS_SWAPON:            {Path: 1},
	unix.SYS_SWAPOFF:           {Path: 1},
	unix.SYS_ACCT:              {Path: 1},

	// C libraries try these and go on without.
	unix.SYS_CLONE3: {Flags: callProbed},
	unix.SYS_RSEQ:   {Flags: callProbed},

	// EPERM: the file cannot be polled. Go tries with each file it opens.
	unix.SYS_EPOLL_CTL: {Flags: callQuiet},
}
