package bpf

import "golang.org/x/sys/unix"

// callInfo is struct call_info of c/abi.h: argument numbers count from 1, 0 is none.
type callInfo struct {
	Path, Path2 uint8
	Dir, Dir2   uint8 // directories that the paths are relative to; 0: the current one
	Addr        uint8
	File        uint8 // descriptor of the file itself
	Extent      uint8 // length that a file is made to reach
	Act         uint8
	Flags       uint16
	_           uint16
}

// Acts of callInfo, as enum act: what success means.
const (
	actOpen = iota + 1 // the result is a descriptor of a file
	actChange
	actMmap
	actMprotect
	actReceive // descriptors may have come with the message
	actAddress // told before; a failure says whom it did not reach
)

// Flags of callInfo, as enum call_flags.
const (
	callBytes  = 1 << iota // the result counts bytes
	callExec               // every failure is recorded
	callProbed             // ENOSYS is ordinary feature probing
	callMsghdr             // Addr is a struct msghdr
	callListen             // success is recorded
	callQuiet              // EPERM means something else than a refusal
	callWrites             // File or Extent is set, and the call makes the file grow
	callText               // Path names no file
	callText2              // Path2 names no file
	callOpen2              // the flags are in a struct open_how
	callVector             // the result counts messages
)

// callCount is the number of system calls that are counted one by one.
const callCount = 512

// callTable tells the programs how to treat each system call of this architecture.
// Both tables are data of the program: maps would be made at each start.
func callTable() *[callCount]callInfo {
	table := commonCalls
	for nr := range archCalls {
		if archCalls[nr] != (callInfo{}) {
			table[nr] = archCalls[nr]
		}
	}
	return &table
}

// commonCalls are those that amd64 and arm64 both have.
var commonCalls = [callCount]callInfo{
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
	unix.SYS_RECVMSG:  {Act: actReceive, Flags: callBytes},
	unix.SYS_RECVMMSG: {Act: actReceive, Flags: callVector},
	unix.SYS_SENDTO:   {Addr: 5, Act: actAddress, Flags: callBytes},
	unix.SYS_SENDMSG:  {Addr: 2, Act: actAddress, Flags: callBytes | callMsghdr},
	unix.SYS_SENDMMSG: {Addr: 2, Act: actAddress, Flags: callMsghdr}, // the first message; the result counts messages
	unix.SYS_SENDFILE: {File: 1, Flags: callBytes | callWrites},
	unix.SYS_SPLICE:   {File: 3, Flags: callBytes | callWrites},
	unix.SYS_TEE:      {Flags: callBytes},
	unix.SYS_VMSPLICE: {Flags: callBytes},

	unix.SYS_COPY_FILE_RANGE: {File: 3, Flags: callBytes | callWrites},

	unix.SYS_CONNECT: {Addr: 2, Act: actAddress},
	unix.SYS_BIND:    {Addr: 2, Act: actAddress},
	unix.SYS_LISTEN:  {Flags: callListen},

	unix.SYS_EXECVE:   {Path: 1, Flags: callExec},
	unix.SYS_EXECVEAT: {Dir: 1, Path: 2, Flags: callExec},

	unix.SYS_OPENAT:            {Dir: 1, Path: 2, Act: actOpen},
	unix.SYS_OPENAT2:           {Dir: 1, Path: 2, Act: actOpen, Flags: callOpen2},
	unix.SYS_NAME_TO_HANDLE_AT: {Dir: 1, Path: 2},
	unix.SYS_TRUNCATE:          {Path: 1, Extent: 2, Act: actChange, Flags: callWrites},
	unix.SYS_FTRUNCATE:         {File: 1, Extent: 2, Act: actChange, Flags: callWrites},
	unix.SYS_FALLOCATE:         {File: 1, Extent: 4, Flags: callWrites},
	unix.SYS_MKDIRAT:           {Dir: 1, Path: 2, Act: actChange},
	unix.SYS_MKNODAT:           {Dir: 1, Path: 2, Act: actChange},
	unix.SYS_UNLINKAT:          {Dir: 1, Path: 2, Act: actChange},
	unix.SYS_RENAMEAT:          {Dir: 1, Path: 2, Dir2: 3, Path2: 4, Act: actChange},
	unix.SYS_RENAMEAT2:         {Dir: 1, Path: 2, Dir2: 3, Path2: 4, Act: actChange},
	unix.SYS_LINKAT:            {Dir: 1, Path: 2, Dir2: 3, Path2: 4, Act: actChange},
	unix.SYS_SYMLINKAT:         {Path: 1, Dir2: 2, Path2: 3, Act: actChange, Flags: callText},
	unix.SYS_READLINKAT:        {Dir: 1, Path: 2},
	unix.SYS_FCHMODAT:          {Dir: 1, Path: 2, Act: actChange},
	unix.SYS_FCHMODAT2:         {Dir: 1, Path: 2, Act: actChange},
	unix.SYS_FCHMOD:            {File: 1, Act: actChange},
	unix.SYS_FCHOWN:            {File: 1, Act: actChange},
	unix.SYS_FCHOWNAT:          {Dir: 1, Path: 2, Act: actChange},
	unix.SYS_UTIMENSAT:         {Dir: 1, Path: 2},
	unix.SYS_FACCESSAT:         {Dir: 1, Path: 2},
	unix.SYS_FACCESSAT2:        {Dir: 1, Path: 2},
	unix.SYS_STATX:             {Dir: 1, Path: 2},
	unix.SYS_STATFS:            {Path: 1},
	unix.SYS_CHDIR:             {Path: 1},
	unix.SYS_CHROOT:            {Path: 1},
	unix.SYS_SETXATTR:          {Path: 1, Path2: 2, Act: actChange, Flags: callText2},
	unix.SYS_LSETXATTR:         {Path: 1, Path2: 2, Act: actChange, Flags: callText2},
	unix.SYS_FSETXATTR:         {File: 1, Path2: 2, Act: actChange, Flags: callText2},
	unix.SYS_GETXATTR:          {Path: 1},
	unix.SYS_LGETXATTR:         {Path: 1},
	unix.SYS_LISTXATTR:         {Path: 1},
	unix.SYS_LLISTXATTR:        {Path: 1},
	unix.SYS_SETXATTRAT:        {Dir: 1, Path: 2, Path2: 4, Act: actChange, Flags: callText2},
	unix.SYS_REMOVEXATTRAT:     {Dir: 1, Path: 2, Path2: 4, Act: actChange, Flags: callText2},
	unix.SYS_REMOVEXATTR:       {Path: 1, Path2: 2, Act: actChange, Flags: callText2},
	unix.SYS_LREMOVEXATTR:      {Path: 1, Path2: 2, Act: actChange, Flags: callText2},
	unix.SYS_FREMOVEXATTR:      {File: 1, Path2: 2, Act: actChange, Flags: callText2},
	unix.SYS_MEMFD_CREATE:      {Path: 1, Act: actOpen, Flags: callText},
	unix.SYS_MMAP:              {Act: actMmap},
	unix.SYS_MPROTECT:          {Act: actMprotect},
	unix.SYS_PKEY_MPROTECT:     {Act: actMprotect},
	unix.SYS_INOTIFY_ADD_WATCH: {Path: 2},
	unix.SYS_FANOTIFY_MARK:     {Path: 5},
	unix.SYS_MOUNT:             {Path: 1, Path2: 2, Flags: callText},
	unix.SYS_UMOUNT2:           {Path: 1},
	unix.SYS_PIVOT_ROOT:        {Path: 1, Path2: 2},
	unix.SYS_OPEN_TREE:         {Dir: 1, Path: 2},
	unix.SYS_MOVE_MOUNT:        {Dir: 1, Path: 2, Dir2: 3, Path2: 4},
	unix.SYS_FSPICK:            {Dir: 1, Path: 2},
	unix.SYS_MOUNT_SETATTR:     {Dir: 1, Path: 2},
	unix.SYS_SWAPON:            {Path: 1},
	unix.SYS_SWAPOFF:           {Path: 1},
	unix.SYS_ACCT:              {Path: 1},

	// C libraries try these and go on without.
	unix.SYS_CLONE3: {Flags: callProbed},
	unix.SYS_RSEQ:   {Flags: callProbed},

	// EPERM: the file cannot be polled. Go tries with each file it opens.
	unix.SYS_EPOLL_CTL: {Flags: callQuiet},
}
