package bpf

import "golang.org/x/sys/unix"

// archCalls are the older forms that arm64 never had.
var archCalls = [...]callInfo{
	unix.SYS_OPEN:       {Path: 1, Act: actOpen},
	unix.SYS_CREAT:      {Path: 1, Act: actOpen},
	unix.SYS_STAT:       {Path: 1},
	unix.SYS_LSTAT:      {Path: 1},
	unix.SYS_NEWFSTATAT: {Dir: 1, Path: 2},
	unix.SYS_ACCESS:     {Path: 1},
	unix.SYS_RENAME:     {Path: 1, Path2: 2, Act: actChange},
	unix.SYS_MKDIR:      {Path: 1, Act: actChange},
	unix.SYS_RMDIR:      {Path: 1, Act: actChange},
	unix.SYS_LINK:       {Path: 1, Path2: 2, Act: actChange},
	unix.SYS_UNLINK:     {Path: 1, Act: actChange},
	unix.SYS_SYMLINK:    {Path: 1, Path2: 2, Act: actChange, Flags: callText},
	unix.SYS_READLINK:   {Path: 1},
	unix.SYS_CHMOD:      {Path: 1, Act: actChange},
	unix.SYS_CHOWN:      {Path: 1, Act: actChange},
	unix.SYS_LCHOWN:     {Path: 1, Act: actChange},
	unix.SYS_MKNOD:      {Path: 1, Act: actChange},
	unix.SYS_UTIME:      {Path: 1},
	unix.SYS_UTIMES:     {Path: 1},
	unix.SYS_FUTIMESAT:  {Dir: 1, Path: 2},
	unix.SYS_USELIB:     {Path: 1},
}
