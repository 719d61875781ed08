package seccomp

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What is refused where namespaces are shared, by name and arguments.
var sharingProbes = []struct {
	call    string
	args    []uint64
	refused string // with which of those below: s(trict), u(nix), m(etadata)
}{
	{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM}, "sum"},
	{"socket", []uint64{unix.AF_INET6, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC}, "sum"},
	{"socket", []uint64{unix.AF_INET | high, unix.SOCK_STREAM}, "sum"},
	{"socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, "sum"},
	{"socket", []uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, "sum"},
	{"socket", []uint64{unix.AF_UNIX, unix.SOCK_STREAM}, "sm"},
	{"socketpair", []uint64{unix.AF_UNIX, unix.SOCK_STREAM | unix.SOCK_CLOEXEC}, ""},
	{"socketpair", []uint64{unix.AF_UNIX, unix.SOCK_SEQPACKET}, ""},
	{"socketpair", []uint64{unix.AF_UNIX, unix.SOCK_DGRAM}, "sm"},
	{"socketpair", []uint64{unix.AF_UNIX, unix.SOCK_RAW | unix.SOCK_NONBLOCK}, "sm"},
	{"socketpair", []uint64{unix.AF_UNIX | high, unix.SOCK_DGRAM}, "sm"},
	{"prlimit64", []uint64{0, unix.RLIMIT_CPU, 1 << 40}, ""},
	{"prlimit64", []uint64{77, unix.RLIMIT_CPU, 0, 1 << 40}, ""},
	{"prlimit64", []uint64{77, unix.RLIMIT_CPU, 1 << 40}, "sum"},
	{"prlimit64", []uint64{77, unix.RLIMIT_CPU, 4096}, "sum"},
	{"sched_setaffinity", []uint64{0, 8}, ""},
	{"sched_setaffinity", []uint64{77, 8}, "sum"},
	{"sched_setscheduler", []uint64{77}, "sum"},
	{"sched_setparam", []uint64{77}, "sum"},
	{"sched_setattr", []uint64{77}, "sum"},
	{"setpriority", []uint64{unix.PRIO_PROCESS, 0, 5}, ""},
	{"setpriority", []uint64{unix.PRIO_PROCESS, 77, 5}, "sum"},
	{"setpriority", []uint64{unix.PRIO_USER, 0, 5}, "sum"},
	{"setpriority", []uint64{unix.PRIO_PGRP, 0, 5}, "sum"},
	{"ioprio_set", []uint64{1, 0}, ""},
	{"ioprio_set", []uint64{1, 77}, "sum"},
	{"ioprio_set", []uint64{3, 0}, "sum"},
	{"shmget", nil, "sum"},
	{"shmat", nil, "sum"},
	{"msgrcv", nil, "sum"},
	{"semop", nil, "sum"},
	{"mq_open", nil, "sum"},
	{"fchmodat", nil, "su"},
	{"fchmodat2", nil, "su"},
	{"chmod", nil, "su"},
	{"fchownat", nil, "su"},
	{"lchown", nil, "su"},
	{"setxattr", nil, "su"},
	{"setxattrat", nil, "su"},
	{"lremovexattr", nil, "su"},
	{"file_setattr", nil, "su"},
	{"utimensat", []uint64{3, 1 << 40}, "su"},
	{"utimensat", []uint64{3, 4096}, "su"},
	{"utimensat", []uint64{3, 0}, ""},
	{"fchmod", nil, ""},
	{"fchown", nil, ""},
	{"fsetxattr", nil, ""},
	{"ioctl", []uint64{3, 0x40086602}, "sum"}, // FS_IOC_SETFLAGS, and as 32-bit programs have it
	{"ioctl", []uint64{3, 0x40046602}, "sum"},
	{"ioctl", []uint64{3, 0x40086602 | high}, "sum"},
	{"ioctl", []uint64{3, 0x401c5820}, "sum"}, // FS_IOC_FSSETXATTR
	{"ioctl", []uint64{3, 0x40087602}, "sum"}, // FS_IOC_SETVERSION
	{"ioctl", []uint64{3, 0x40806685}, "sum"}, // FS_IOC_ENABLE_VERITY
	{"ioctl", []uint64{3, 0x800c6613}, "sum"}, // FS_IOC_SET_ENCRYPTION_POLICY
	{"ioctl", []uint64{3, 0x40047211}, "sum"}, // FAT_IOCTL_SET_ATTRIBUTES
	{"ioctl", []uint64{3, 0x4008941a}, "sum"}, // BTRFS_IOC_SUBVOL_SETFLAGS
	{"ioctl", []uint64{3, 0x80086601}, ""},    // FS_IOC_GETFLAGS
	{"ioctl", []uint64{3, 0xc020660b}, ""},    // FS_IOC_FIEMAP
	{"ioctl", []uint64{3, 0x40049409}, ""},    // FICLONE
	{"ioctl", []uint64{0, unix.TCGETS}, ""},
	{"ioctl", []uint64{0, unix.TIOCINQ}, ""},
	{"memfd_create", nil, ""},
	{"memfd_secret", nil, "sum"},
	{"openat", nil, ""},
	{"kill", nil, ""},
	{"connect", nil, ""},
}

func TestSharing(t *testing.T) {
	for _, a := range arches {
		for letter, s := range map[string]Sharing{"s": {}, "u": {Unix: true}, "m": {Metadata: true}} {
			filter := decode(encode(a.assemble(Config{Sharing: &s})))
			for _, p := range sharingProbes {
				c := a.byName(p.call)
				if c == nil {
					if a.x32 {
						t.Errorf("%s does not know %s", archName(a), p.call)
					}
					continue
				}
				d := seccompData{nr: uint32(c.nr), arch: a.audit}
				copy(d.args[:], p.args)
				want := verdictAllow
				if strings.Contains(p.refused, letter) {
					want = verdictRefuse
				}
				if p.call == secretMemory {
					want = verdictAbsent
				}
				if got := interpret(t, filter, d); got != want {
					t.Errorf("%s, %+v: %s%#x: %#x, want %#x", archName(a), s, p.call, p.args, got, want)
				}
			}
		}
	}
}

// Every name in the lists is a call of one architecture at least, and what sharing
// has no say in is answered as without.
func TestSharingNames(t *testing.T) {
	names := strings.Fields(sharedObjects + " " + metadataCalls)
	for name := range shared {
		names = append(names, name)
	}
	for _, name := range names {
		if x86_64.byName(name) == nil && aarch64.byName(name) == nil {
			t.Errorf("there is no call %s", name)
		}
	}
	for _, a := range arches {
		filter := a.assemble(Config{Sharing: &Sharing{}})
		for _, c := range a.calls {
			if _, judged := (Sharing{}).rule(c.name); judged {
				continue
			}
			want := a.decide(uint32(c.nr), [6]uint64{}, Config{})
			if got := interpret(t, filter, seccompData{nr: uint32(c.nr), arch: a.audit}); got != want {
				t.Errorf("%s: %s: %#x, want %#x", archName(a), c.name, got, want)
			}
		}
	}
}
