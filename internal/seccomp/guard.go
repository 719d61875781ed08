package seccomp

import "golang.org/x/sys/unix"

// frees are the modes of fallocate that take no room. What it reserves is in no number that the kernel
// tells of what was written, so it is answered as by a file system that cannot do it (EOPNOTSUPP):
// posix_fallocate(3) writes instead.
var frees = rule{{{arg: 1, in: []uint32{unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_COLLAPSE_RANGE}}}}

var otherThanInit = rule{{{arg: 0, in: []uint32{1}, except: true}}}

// guarded are calls on a process that is named by its number, and what of them does not act on
// PID 1. The kernel keeps signals and tracers from a PID namespace's first process; its
// limits and its scheduling it leaves to whoever has its uid, and a limit of no CPU time
// kills it. Of those on all of a user or of a group there are none: PID 1 has the command's
// user, and a group that it may join.
var guarded = map[string]rule{
	"prlimit64":          otherThanInit,
	"sched_setaffinity":  otherThanInit,
	"sched_setparam":     otherThanInit,
	"sched_setscheduler": otherThanInit,
	"sched_setattr":      otherThanInit,
	"setpriority":        {{{arg: 0, in: []uint32{unix.PRIO_PROCESS}}, {arg: 1, in: []uint32{1}, except: true}}},
	"ioprio_set":         {{{arg: 0, in: []uint32{ioprioProcess}}, {arg: 1, in: []uint32{1}, except: true}}},
}

const ioprioProcess = 1 // IOPRIO_WHO_PROCESS, linux/ioprio.h
