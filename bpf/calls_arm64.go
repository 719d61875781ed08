package bpf

import "golang.org/x/sys/unix"

// archCalls are those whose name in x/sys/unix differs from amd64's.
var archCalls = [...]callInfo{
	unix.SYS_NEWFSTATAT: {Dir: 1, Path: 2},
}
