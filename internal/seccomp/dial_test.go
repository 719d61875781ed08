package seccomp

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// The dialling process may do what its list says, with the command's rules on
// arguments, and nothing else: it executes nothing and signals nobody.
func TestDialFilter(t *testing.T) {
	for _, a := range arches {
		filter := decode(encode(a.onlyElse(dialCalls(), verdictRefuse)))
		judge := func(name string, args ...uint64) Verdict {
			c := a.byName(name)
			if c == nil {
				return verdictRefuse
			}
			d := seccompData{nr: uint32(c.nr), arch: a.audit}
			copy(d.args[:], args)
			return interpret(t, filter, d)
		}
		for _, c := range a.calls {
			want := verdictRefuse
			if slices.Contains(dialCalls(), c.name) {
				want = verdictAllow
			}
			if c.name == "clone3" {
				want = verdictAbsent // C libraries go on with clone
			}
			if c.action < ruled && judge(c.name) != want {
				t.Errorf("%s: %s: %#x, want %#x", archName(a), c.name, judge(c.name), want)
			}
		}
		for _, name := range []string{"execve", "execveat", "ptrace", "kill", "tkill", "pidfd_open", "pidfd_getfd", "process_vm_writev", "mount", "setns", "unshare", "bpf", "io_uring_setup", "setuid", "unlinkat", "renameat2", "mkdirat", "fchmodat"} {
			if judge(name) == verdictAllow {
				t.Errorf("%s: %s is allowed", archName(a), name)
			}
		}
		if judge("socket", unix.AF_INET, unix.SOCK_STREAM, 0) != verdictAllow || judge("socket", unix.AF_INET, unix.SOCK_RAW, 1) != verdictRefuse ||
			judge("socket", unix.AF_PACKET, unix.SOCK_RAW, 0) != verdictRefuse || judge("clone", unix.CLONE_NEWUSER) != verdictRefuse {
			t.Errorf("%s: sockets and clones are not judged by their arguments", archName(a))
		}
	}
}

// The process that holds credentials makes no socket and opens no file.
func TestBrokerFilter(t *testing.T) {
	for _, a := range arches {
		filter := decode(encode(a.onlyElse(brokerCalls(), verdictRefuse)))
		for _, c := range a.calls {
			d := seccompData{nr: uint32(c.nr), arch: a.audit}
			got := interpret(t, filter, d)
			if allowed := slices.Contains(brokerCalls(), c.name); c.action < ruled && c.name != "clone3" && (got == verdictAllow) != allowed {
				t.Errorf("%s: %s: %#x", archName(a), c.name, got)
			}
		}
		for _, name := range []string{
			"socket", "socketpair", "connect", "bind", "listen", "accept4", "open", "openat", "openat2", "creat", "execve", "execveat", "ptrace", "kill", "splice",
			"process_vm_readv", "pidfd_open", "memfd_create", "statx", "bpf", "unshare", "setns", "mount",
		} {
			if c := a.byName(name); c != nil && interpret(t, filter, seccompData{nr: uint32(c.nr), arch: a.audit}) == verdictAllow {
				t.Errorf("%s: %s is allowed", archName(a), name)
			}
		}
	}
}
