package seccomp

import "golang.org/x/sys/unix"

var (
	x86_64  = arch{audit: unix.AUDIT_ARCH_X86_64, x32: true, calls: x86Calls}
	aarch64 = arch{audit: unix.AUDIT_ARCH_AARCH64, calls: aarch64Calls}
)
