package seccomp

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data. Arguments are 64 bits, little endian on every
// architecture that we have.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

const (
	x32Bit = 0x40000000 // __X32_SYSCALL_BIT
	// skipped is the number -1. It is no call: a tracer sets it to have a call
	// skipped (strace's injections), and the kernel itself answers ENOSYS.
	skipped = 0xffffffff
)

// A span is the numbers from first up to the next span's first, which all have
// the same answer: the verdict, or where there is a rule to allow what it allows and
// to answer otherwise to the rest.
type span struct {
	first     uint32
	verdict   Verdict
	rule      rule
	otherwise Verdict // 0: verdictRefuse
}

// A spanList is ordered by first and covers all numbers from its first one on.
type spanList []span

// add appends s, unless it goes on with the answer of the span before it.
func (l *spanList) add(s span) {
	if n := len(*l); n > 0 && s.rule == nil && (*l)[n-1].rule == nil && (*l)[n-1].verdict == s.verdict {
		return
	}
	*l = append(*l, s)
}

// assemble makes the command's filter.
func (a *arch) assemble(c Config) []unix.SockFilter { return a.assembleWith(c.span) }

// assembleWith makes a filter that answers as answer says to the calls of the
// table, and ENOSYS to others.
func (a *arch) assembleWith(answer func(*call) span) []unix.SockFilter {
	spans := make(spanList, 0, len(a.calls))
	next := uint32(0)
	for i := range a.calls {
		c := &a.calls[i]
		if uint32(c.nr) > next {
			spans.add(span{first: next, verdict: verdictAbsent})
		}
		spans.add(answer(c))
		next = uint32(c.nr) + 1
	}
	spans.add(span{first: next, verdict: verdictAbsent})
	if a.x32 {
		spans.add(span{first: x32Bit, verdict: verdictKill})
		spans.add(span{first: skipped, verdict: verdictAbsent})
	}
	return a.program(spans)
}

func (c *call) span(extra []string) span {
	if c.action >= ruled {
		return span{first: uint32(c.nr), rule: rules[c.action]}
	}
	return span{first: uint32(c.nr), verdict: c.verdict(extra)}
}

// only makes a filter that allows the named calls and kills for any other.
func (a *arch) only(names []string) []unix.SockFilter { return a.onlyElse(names, verdictKill) }

// onlyElse makes a filter that judges the named calls as for a command, and
// answers other to all the rest.
func (a *arch) onlyElse(names []string, other Verdict) []unix.SockFilter {
	var spans spanList
	next := uint32(0)
	for i := range a.calls {
		c := &a.calls[i]
		if !slices.Contains(names, c.name) {
			continue
		}
		if uint32(c.nr) > next {
			spans.add(span{first: next, verdict: other})
		}
		if c.action >= absent {
			spans.add(c.span(nil))
		} else {
			spans.add(span{first: uint32(c.nr), verdict: verdictAllow})
		}
		next = uint32(c.nr) + 1
	}
	spans.add(span{first: next, verdict: other})
	return a.program(spans)
}

// program is a whole filter: the architecture, then the search by number.
func (a *arch) program(spans spanList) []unix.SockFilter {
	p := make([]unix.SockFilter, 0, 3*len(spans))
	p = append(p, load(offArch), jump(unix.BPF_JEQ, a.audit, 1, 0), ret(verdictKill), load(offNumber))
	return spans.search(p)
}

// search appends to p code that finds the span of the number in the
// accumulator by bisection, and answers. The kernel runs a filter once for
// each number when it is installed, to remember which are allowed whatever
// their arguments (5.11): comparing with one number after the other would make
// that, and every call that is judged by its arguments, several times as slow.
func (l spanList) search(p []unix.SockFilter) []unix.SockFilter {
	if len(l) == 1 {
		return l[0].answer(p)
	}
	half := len(l) / 2
	at := len(p)
	p = l[:half].search(append(p, unix.SockFilter{}))
	if low := len(p) - at - 1; low <= 255 {
		p[at] = jump(unix.BPF_JGE, l[half].first, uint8(low), 0)
	} else { // conditional jumps have 8 bits
		p[at] = jump(unix.BPF_JGE, l[half].first, 0, 1)
		p = slices.Insert(p, at+1, skip(low))
	}
	return l[half:].search(p)
}

func (s span) answer(p []unix.SockFilter) []unix.SockFilter {
	if s.rule == nil {
		return append(p, ret(s.verdict))
	}
	for _, c := range s.rule {
		p = append(p, c.code()...)
	}
	if s.otherwise == 0 { // SECCOMP_RET_KILL_THREAD, which no filter of ours answers
		s.otherwise = verdictRefuse
	}
	return append(p, ret(s.otherwise))
}

// code returns when the case holds, and else runs past its end.
func (c ruleCase) code() []unix.SockFilter {
	rest := []unix.SockFilter{ret(verdictAllow)}
	for _, t := range slices.Backward(c) {
		rest = append(t.code(len(rest)), rest...)
	}
	return rest
}

// code goes on behind itself when the test holds, and else skips rest more instructions.
func (t argTest) code(rest int) []unix.SockFilter {
	off := offArgs + 8*uint32(t.arg)
	if t.upper {
		off += 4
	}
	p := []unix.SockFilter{load(off)}
	if t.mask != 0 {
		p = append(p, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: t.mask})
	}
	for i, v := range t.in {
		left := len(t.in) - 1 - i // comparisons behind this one
		found, last := left, rest
		if t.except {
			found, last = left+rest, 0
		}
		if left > 0 {
			last = 0
		}
		p = append(p, jump(unix.BPF_JEQ, v, uint8(found), uint8(last)))
	}
	return p
}

func load(off uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
}

// jump compares the accumulator with k and skips yes or no instructions.
func jump(op uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, Jt: yes, Jf: no, K: k}
}

func skip(n int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(n)}
}

func ret(v Verdict) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: uint32(v)}
}

func encode(p []unix.SockFilter) []byte {
	b := make([]byte, 0, 8*len(p))
	for _, i := range p {
		b = binary.LittleEndian.AppendUint16(b, i.Code)
		b = append(b, i.Jt, i.Jf)
		b = binary.LittleEndian.AppendUint32(b, i.K)
	}
	return b
}
