// Package seccomp is the system call filter of a run: tables that say what
// happens to every call, and the classic BPF program made of them.
//
// The tables (table_*.go) are generated from Moby's default profile and this
// project's own decisions, each with its reason (gen/decisions.go). Rules on
// arguments are in rules.go. To make the tables again, in this directory:
//
//	go run -C gen . ..
//
// What a filter answers (include/uapi/linux/seccomp.h):
//
//   - another architecture's calls (int 0x80, x32 and 32-bit ARM): the process is killed;
//   - a call that the table allows, or its rule: the call is made;
//   - a call that the table knows and refuses: EPERM;
//   - a call that the table does not know, since the kernel is newer: ENOSYS, so that
//     programs go on as on an older kernel; clone3 as well.
//
// The kernel gives every filter of a process its say and takes the strictest
// answer: a filter of the command's own can only refuse more.
package seccomp

//go:generate go run -C gen . ..

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// InitFilter returns the filter of PID 1, in the form of [Filter]. It allows
// what PID 1 does after its lockdown (supervisor/init/c/init.c) and what the
// kernel makes a process call by itself. Everything else kills it, and with it
// the run. Reading is part of it: the signalfd that wakes PID 1 must be drained.
func InitFilter() []byte { return encode(native.only(initCalls)) }

// KeeperFilter is [InitFilter] for a guardian without a PID namespace, which kills by itself.
func KeeperFilter() []byte { return encode(native.only(slices.Concat(initCalls, keeperCalls))) }

var keeperCalls = []string{"kill", "pread64", "getpgid"}

var initCalls = []string{
	"read", "sendmsg", "recvmsg", "ppoll", "wait4", "close", "exit", "exit_group", "rt_sigreturn", "restart_syscall",
}

// Name returns the name of call nr of this architecture, or "syscall_NR".
func Name(nr int) string {
	if c := native.byNumber(nr); c != nil {
		return c.name
	}
	return "syscall_" + strconv.Itoa(nr)
}

// Permissible reports whether a policy may name the call in seccomp_allow on
// this architecture.
func Permissible(name string) bool {
	c := native.byName(name)
	return c != nil && c.grantable()
}

// A Verdict is what a filter returns: an action (SECCOMP_RET_*) and its data.
type Verdict uint32

const (
	verdictAllow       Verdict = unix.SECCOMP_RET_ALLOW
	verdictKill        Verdict = unix.SECCOMP_RET_KILL_PROCESS
	verdictRefuse      Verdict = unix.SECCOMP_RET_ERRNO | Verdict(unix.EPERM)
	verdictUnsupported Verdict = unix.SECCOMP_RET_ERRNO | Verdict(unix.EOPNOTSUPP)
	verdictAbsent      Verdict = unix.SECCOMP_RET_ERRNO | Verdict(unix.ENOSYS)
)

// Errno returns the error that the call fails with: 0 when it is allowed, and
// when its process is killed.
func (v Verdict) Errno() unix.Errno {
	if v&unix.SECCOMP_RET_ACTION_FULL != unix.SECCOMP_RET_ERRNO {
		return 0
	}
	return unix.Errno(v & unix.SECCOMP_RET_DATA)
}

// An arch is an architecture as the filter sees it.
type arch struct {
	audit uint32 // AUDIT_ARCH_*, in struct seccomp_data
	x32   bool   // numbers from x32Bit on are the x32 ABI's, or negative
	calls []call // by number
}

// A call is a row of a table.
type call struct {
	nr     uint16
	name   string
	action action
	why    string // it is not simply allowed; or it is, and Moby does not say so
}

// An action is what happens to a call. Actions from ruled on are index into rules.
type action uint8

const (
	allow  action = iota
	refuse        // EPERM; a policy may grant it
	never         // EPERM
	absent        // ENOSYS
	ruled         // as its rule says; a policy cannot change it
)

func (c *call) grantable() bool { return c.action == allow || c.action == refuse }

// verdict is the answer to a call that has no rule.
func (c *call) verdict(extra []string) Verdict {
	switch {
	case c.action == allow, c.action == refuse && slices.Contains(extra, c.name):
		return verdictAllow
	case c.action == absent:
		return verdictAbsent
	}
	return verdictRefuse
}

func (a *arch) byNumber(nr int) *call {
	i, ok := slices.BinarySearchFunc(a.calls, nr, func(c call, nr int) int { return int(c.nr) - nr })
	if !ok {
		return nil
	}
	return &a.calls[i]
}

func (a *arch) byName(name string) *call {
	i := slices.IndexFunc(a.calls, func(c call) bool { return c.name == name })
	if i < 0 {
		return nil
	}
	return &a.calls[i]
}

// check says everything that is wrong with names as a policy's seccomp_allow.
func (a *arch) check(names []string) error {
	var errs []error
	for _, name := range names {
		c := a.byName(name)
		switch {
		case c == nil:
			errs = append(errs, a.unknown(name))
		case !c.grantable():
			errs = append(errs, fmt.Errorf("system call %s can not be allowed: %s", name, c.why))
		}
	}
	return errors.Join(errs...)
}

func (a *arch) unknown(name string) error {
	best, distance := "", len(name)/3+2
	for i := range a.calls {
		if d := editDistance(name, a.calls[i].name); d < distance {
			best, distance = a.calls[i].name, d
		}
	}
	if best == "" {
		return fmt.Errorf("this architecture has no system call %q", name)
	}
	return fmt.Errorf("this architecture has no system call %q: did you mean %s?", name, best)
}

// editDistance counts the insertions, removals and replacements of bytes that
// make a of b (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
