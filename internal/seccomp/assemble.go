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
// the same answer.
type span struct {
	first uint32
	code  []unix.SockFilter // ends in a return on every path
}

// assemble makes the command's filter.
func (a *arch) assemble(extra []string) []unix.SockFilter {
	absent := ret(verdictAbsent)
	spans := []span{{0, absent}}
	next := uint32(0)
	for i := range a.calls {
		c := &a.calls[i]
		if uint32(c.nr) > next {
			spans = appendSpan(spans, span{next, absent})
		}
		spans = appendSpan(spans, span{uint32(c.nr), c.code(extra)})
		next = uint32(c.nr) + 1
	}
	spans = appendSpan(spans, span{next, absent})
	if a.x32 {
		spans = append(spans, span{x32Bit, ret(verdictKill)}, span{skipped, absent})
	}
	return a.program(spans)
}

// only makes a filter that allows the named calls and kills for any other.
func (a *arch) only(names []string) []unix.SockFilter {
	kill, ok := ret(verdictKill), ret(verdictAllow)
	spans := []span{{0, kill}}
	for i := range a.calls {
		if c := &a.calls[i]; slices.Contains(names, c.name) {
			spans = appendSpan(spans, span{uint32(c.nr), ok})
			spans = append(spans, span{uint32(c.nr) + 1, kill})
		}
	}
	return a.program(spans)
}

// appendSpan joins s to the last of spans when both say the same, and replaces
// the last when it is empty.
func appendSpan(spans []span, s span) []span {
	if last := len(spans) - 1; spans[last].first == s.first {
		spans = spans[:last]
	}
	if last := len(spans) - 1; last >= 0 && slices.Equal(spans[last].code, s.code) {
		return spans
	}
	return append(spans, s)
}

// program is a whole filter: the architecture, then the search by number.
func (a *arch) program(spans []span) []unix.SockFilter {
	p := []unix.SockFilter{
		load(offArch),
		jump(unix.BPF_JEQ, a.audit, 1, 0),
		ret(verdictKill)[0],
		load(offNumber),
	}
	return append(p, search(spans)...)
}

// search finds the span of the number in the accumulator by bisection. The
// kernel runs a filter once for each number when it is installed, to remember
// which are allowed whatever their arguments (5.11); a hundred comparisons in
// a row would cost more then than the rest of the installation.
func search(spans []span) []unix.SockFilter {
	if len(spans) == 1 {
		return spans[0].code
	}
	half := len(spans) / 2
	low, high := search(spans[:half]), search(spans[half:])
	p := make([]unix.SockFilter, 0, 2+len(low)+len(high))
	if len(low) <= 255 {
		p = append(p, jump(unix.BPF_JGE, spans[half].first, uint8(len(low)), 0))
	} else { // conditional jumps have 8 bits
		p = append(p, jump(unix.BPF_JGE, spans[half].first, 0, 1), skip(len(low)))
	}
	return append(append(p, low...), high...)
}

func (c *call) code(extra []string) []unix.SockFilter {
	if c.action < ruled {
		return ret(c.verdict(extra))
	}
	var p []unix.SockFilter
	for _, rc := range rules[c.action] {
		p = append(p, rc.code()...)
	}
	return append(p, ret(verdictRefuse)...)
}

// code returns when the case holds, and else runs past its end.
func (c ruleCase) code() []unix.SockFilter {
	rest := ret(verdictAllow)
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

func ret(v Verdict) []unix.SockFilter {
	return []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: uint32(v)}}
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
