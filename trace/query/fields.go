package query

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/agentguard/agentguard/trace"
)

// Type says how the values of a field compare.
type Type uint8

// The types of fields.
const (
	Text   Type = iota // bytes, compared as bytes
	Number             // integers of up to 64 bits, of either sign
	Bytes              // numbers with units: 10MiB
	Span               // ns, with units: 1.5s
	Addr               // IP addresses: = and in take prefixes too
	Bool               // true or false
	List               // several texts: a test holds when it does for one of them
)

func (t Type) String() string {
	return [...]string{"text", "number", "bytes", "duration", "address", "true or false", "list"}[t]
}

// value is the value of a field of one record.
type value struct {
	there bool
	text  []byte
	list  [][]byte
	neg   bool // the number is -num
	num   uint64
	addr  netip.Addr
}

// field is one field of docs/record.md, or one that is made from several.
type field struct {
	name  string
	typ   Type
	get   func(*trace.Event, *value)
	words []string // all values there are, nil if not closed
}

func str[T ~string](name string, at func(*trace.Event) T, words ...string) field {
	return field{name, Text, func(e *trace.Event, v *value) {
		s := at(e)
		v.text, v.there = append(v.text[:0], s...), s != ""
	}, words}
}

func raw(name string, at func(*trace.Event) []byte) field {
	return field{name, Text, func(e *trace.Event, v *value) {
		s := at(e)
		v.text, v.there = append(v.text[:0], s...), len(s) > 0
	}, nil}
}

// num is a number that is absent when it is 0.
func num[T ~uint16 | ~uint32 | ~uint64](name string, typ Type, at func(*trace.Event) T) field {
	return field{name, typ, func(e *trace.Event, v *value) {
		n := at(e)
		v.num, v.there = uint64(n), n != 0
	}, nil}
}

// always is a number that is written even when it is 0, if the record has what
// it belongs to.
func always[T ~int32 | ~int64 | ~uint16 | ~uint32 | ~uint64](name string, has func(*trace.Event) bool, at func(*trace.Event) T) field {
	return field{name, Number, func(e *trace.Event, v *value) {
		n := int64(at(e))
		v.there, v.neg, v.num = has(e), n < 0, uint64(max(n, -n))
	}, nil}
}

func flag(name string, at func(*trace.Event) bool) field {
	return field{name, Bool, func(e *trace.Event, v *value) { v.there = at(e) }, nil}
}

// named is a number that the record spells; most is the highest there is.
func named(name string, at func(*trace.Event) int32, spell func(int32) string, most int32) field {
	words := make([]string, most)
	for i := range words {
		words[i] = spell(int32(i) + 1)
	}
	return field{name, Text, func(e *trace.Event, v *value) {
		if n := at(e); n != 0 {
			v.text, v.there = append(v.text[:0], spell(n)...), true
		}
	}, words}
}

func id(name string, at func(*trace.Event) *trace.Proc) field {
	return field{name, Text, func(e *trace.Event, v *value) {
		if p := at(e); p.Pid != 0 {
			v.text, v.there = p.AppendID(v.text[:0]), true
		}
	}, nil}
}

func thread(name string, at func(*trace.Event) *trace.Proc) field {
	return num(name, Number, func(e *trace.Event) uint32 {
		if p := at(e); p.Tid != p.Pid {
			return p.Tid
		}
		return 0
	})
}

func who(e *trace.Event) *trace.Proc    { return &e.Proc }
func child(e *trace.Event) *trace.Proc  { return &e.Child }
func target(e *trace.Event) *trace.Proc { return &e.Target }

func isProc(e *trace.Event) bool { return e.Proc.Pid != 0 }
func isLoss(e *trace.Event) bool { return e.Loss.Class != "" }
func isChown(e *trace.Event) bool {
	return e.Kind == trace.KindChown || e.NewUID != 0 || e.NewGID != 0
}
func isCall(e *trace.Event) bool { return e.Syscall != "" || e.SyscallNr != 0 }

func fromKernel(e *trace.Event) bool { return e.CPUSeq != 0 }

// hasExit reports whether the record would write an exit code.
func hasExit(e *trace.Event) bool {
	return e.ExitCode != 0 || e.Signal == 0 && (e.Kind == trace.KindExit || e.Kind == trace.KindSummary)
}

func parent(e *trace.Event, v *value) {
	if p := e.Proc; p.PStart != 0 {
		p.Pid, p.Start = p.PPid, p.PStart
		v.text, v.there = p.AppendID(v.text[:0]), true
	}
}

func wall(e *trace.Event, v *value) {
	v.text = time.Unix(0, e.Wall).UTC().AppendFormat(v.text[:0], "2006-01-02T15:04:05.000000000Z")
	v.there = true
}

func mode(e *trace.Event, v *value) {
	if e.Mode != 0 {
		v.text, v.there = strconv.AppendUint(append(v.text[:0], '0'), uint64(e.Mode), 8), true
	}
}

func device(e *trace.Event, v *value) {
	if v.there = e.DevMajor != 0 || e.DevMinor != 0; v.there {
		v.text = strconv.AppendUint(v.text[:0], uint64(e.DevMajor), 10)
		v.text = strconv.AppendUint(append(v.text, ':'), uint64(e.DevMinor), 10)
	}
}

func ret(e *trace.Event, v *value) {
	v.there, v.neg = e.Ret != 0, e.Ret < 0
	if v.num = uint64(e.Ret); v.neg {
		v.num = -v.num
	}
}

func names(e *trace.Event, v *value) {
	v.list = v.list[:0]
	for _, c := range e.Counts {
		v.list = append(v.list, []byte(c.Name))
	}
	v.there = len(v.list) > 0
}

func findings(e *trace.Event, v *value) { v.setTexts(e.Findings) }

func degraded(e *trace.Event, v *value) { v.setTexts(e.Degraded) }

func (v *value) setTexts(list []string) {
	v.list = v.list[:0]
	for _, s := range list {
		v.list = append(v.list, []byte(s))
	}
	v.there = len(v.list) > 0
}
