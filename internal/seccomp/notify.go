package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"
)

const (
	verdictNotify Verdict = unix.SECCOMP_RET_USER_NOTIF
	verdictBusy   Verdict = unix.SECCOMP_RET_ERRNO | Verdict(unix.EBUSY)
)

// NotifyFilter is [Config.Filter] for a run whose supervisor holds the filter's listener
// (SECCOMP_FILTER_FLAG_NEW_LISTENER, 5.0). The supervisor is asked about every
// call that Filter refuses with EPERM, and PR_SET_MM, and answers what
// [Config.DecideNotified] says; it is told of execve, execveat, exit_group, connect, bind
// and of sendto with an address, which go on when it has answered. While nobody listens
// all of these fail with ENOSYS, so nothing is allowed by a listener's death.
//
// It is one filter, whatever takes part in it: where two of a process answer, the
// strictest answer is given (EPERM before a question), and nobody would be asked.
//
// The command cannot have a listener of its own (EBUSY). Of two filters that ask,
// the newer one's listener is asked, and its "continue" would let a call by that this
// filter refuses. The kernel says EBUSY too, but only as long as the first listener lives.
func (c Config) NotifyFilter() ([]byte, error) {
	if err := native.check(c.Extra); err != nil {
		return nil, err
	}
	return encode(native.assembleWith(c.notifies)), nil
}

// told are the allowed calls that the supervisor is told of.
var told = []string{"execve", "execveat", "exit_group", "connect", "bind"}

var (
	// sendto(fd, buf, len, flags, addr, addrlen): without an address it is write(2).
	unaddressed = rule{{{arg: 4, in: []uint32{0}}, {arg: 4, upper: true, in: []uint32{0}}}}
	// seccomp(operation, flags, args)
	noListener = rule{{{arg: 1, mask: unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, in: []uint32{0}}}}
	// prctl(option, ...). PR_SET_MM sets the addresses by which internal/notify tells one
	// image from the next, and needs no capability (PR_SET_MM_MAP).
	ownAddresses = rule{{{arg: 0, in: []uint32{unix.PR_SET_MM}, except: true}}}
)

// DecideNotified is [Config.Decide] for NotifyFilter, which refuses a little more than Filter.
func (c Config) DecideNotified(nr int, args [6]uint64) Verdict {
	v, _ := native.judgeNotified(uint32(nr), args, c)
	return v
}

func (a *arch) judgeNotified(nr uint32, args [6]uint64, c Config) (Verdict, Part) {
	if row := a.byNumber(int(nr)); row != nil && row.name == "prctl" && !ownAddresses.allows(args) {
		return verdictRefuse, ByNotify
	}
	return a.judge(nr, args, c)
}

// notifies is what such a filter answers to a call.
func (c Config) notifies(row *call) span {
	s := span{first: uint32(row.nr), otherwise: verdictNotify}
	switch {
	case slices.Contains(told, row.name):
		s.verdict = verdictNotify
	case row.name == "sendto":
		s.rule = unaddressed
	case row.name == "seccomp":
		s.rule, s.otherwise = noListener, verdictBusy
	case row.name == "prctl":
		s.rule = ownAddresses
	default:
		if s = c.span(row); s.rule != nil && (s.otherwise == 0 || s.otherwise == verdictRefuse) {
			s.otherwise = verdictNotify
		}
		if s.rule == nil && s.verdict == verdictRefuse {
			s.verdict = verdictNotify
		}
	}
	return s
}
