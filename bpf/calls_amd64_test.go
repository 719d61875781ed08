package bpf

import "golang.org/x/sys/unix"

// archCallNames are the older forms.
var archCallNames = map[int]string{
	unix.SYS_CHMOD: "chmod", unix.SYS_LCHOWN: "lchown", unix.SYS_UNLINK: "unlink", unix.SYS_RENAME: "rename", unix.SYS_MKNOD: "mknod",
}
