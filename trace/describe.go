package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Describe says in one line what a record says, whatever its kind; a denial as
// Sentence does. Everything that came from the command is quoted.
func Describe(e *Event) string {
	var s string
	if e.Denied() {
		s = Sentence(e)
	} else {
		s = plainly(e)
		if e.Errno != 0 {
			s += " (" + ErrnoName(e.Errno) + ")"
		}
		if n := e.Times(); n > 1 {
			s += ", " + strconv.FormatUint(n, 10) + " times"
		}
		if e.Phase == PhaseEnvelope {
			s += " [envelope]"
		}
	}
	if e.Filtered {
		s += " [perhaps an answer of the command's own seccomp filter]"
	}
	return s
}

func plainly(e *Event) string {
	switch e.Kind {
	case KindStart:
		return "start of run " + or(e.Run)
	case KindExec:
		s := "exec " + image(e) + oddities(e)
		if len(e.Script) > 0 {
			s += " (script " + Quote(e.Script[:min(len(e.Script), maxShown)]) + ")"
		}
		return s
	case KindExecFail:
		return "exec failed: " + image(e)
	case KindFork:
		if e.Child.Pid == e.Proc.Pid {
			return "new thread " + strconv.FormatUint(uint64(e.Child.Tid), 10)
		}
		return "fork of process " + strconv.FormatUint(uint64(e.Child.Pid), 10)
	case KindExit:
		return "end: " + ending(e)
	case KindSignal:
		return joined(cmp.Or(SignalName(e.Signal), "signal"), "to", cmp.Or(Object(e), "a process"))
	case KindCanary:
		return "canary " + Quote(e.Probe) + ": " + or(string(e.Verdict))
	case KindLimit:
		return "limit " + limitLine(e)
	case KindOutput:
		return "output " + outputLine(e)
	case KindLoss:
		return lossLine(e.Loss)
	case KindSummary:
		return "end of the run: " + result(e)
	case KindRename, KindLink:
		return joined(word1(string(e.Kind)), Object(e), "to", Quote(e.To[:min(len(e.To), maxShown)]))
	case KindDeny:
		return joined("refused", word1Or(e.Syscall), Object(e))
	case KindConnect, KindBind, KindListen, KindSend, KindSocket:
		return netAct(e)
	case KindCall:
		return callLine(e) + traffic(e.Bytes, e.Received)
	}
	return fileAct(e)
}

// joined puts blanks between the words that are there.
func joined(words ...string) string {
	return strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), " ")
}

func netAct(e *Event) string {
	return joined(word1(string(e.Kind)), peer(e), word1Or(e.End)) + traffic(e.Bytes, e.Received)
}

// callLine says what was asked of a broker, and the status of the answer.
func callLine(e *Event) string {
	status := ""
	if e.Status != 0 {
		status = strconv.FormatUint(uint64(e.Status), 10)
	}
	return joined("call", Quote(e.Name), word1Or(e.Method), Quote(e.Path[:min(len(e.Path), maxShown)]), status)
}

func fileAct(e *Event) string {
	s := word1(string(e.Kind))
	if e.Kind == KindInherit || e.Kind == KindReceive {
		s += " fd " + strconv.Itoa(int(e.FD))
	}
	if e.Access != "" {
		s += " " + word1(e.Access)
	}
	if o := Object(e); o != "" {
		s += " " + o
	}
	if e.Mode != 0 {
		s += " mode 0" + strconv.FormatUint(uint64(e.Mode), 8)
	}
	if e.Kind == KindChown {
		s += owner(e)
	}
	if e.Kind == KindSetxattr && len(e.Name) > 0 {
		s += " " + Quote(e.Name[:min(len(e.Name), maxShown)])
	}
	if e.Kind == KindCode {
		s += " " + cmp.Or(word1Or(e.SHA256), word1Or(e.HashState))
	}
	return s + oddities(e)
}

// owner says to whom a chown gives a file: one that it leaves as it was is not shown.
func owner(e *Event) string {
	s := ""
	if e.NewUID >= 0 {
		s += " uid " + strconv.FormatInt(e.NewUID, 10)
	}
	if e.NewGID >= 0 {
		s += " gid " + strconv.FormatInt(e.NewGID, 10)
	}
	return s
}

func lossLine(l Loss) string {
	s := fmt.Sprintf("%d %s records lost (%s) after record %d", l.Count, Line(l.Class), or(l.Cause), l.AfterSeq)
	if l.BeforeSeq != 0 {
		s += fmt.Sprintf(" and before %d", l.BeforeSeq)
	}
	return s
}
