// Package initproc starts the last mile: the small C program (init.c) that
// becomes PID 1 of a run and, in its second process, the command.
//
// What that program does is data. A [Program] is a flat list of system calls
// with their arguments; the supervisor builds it, prints it for a dry run, and
// sends it together with the descriptors that the calls use. init.c states the
// protocol between the three processes.
package initproc

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// argKind says how init fills in an argument; the values are init.c's ARG_*.
type argKind uint8

const (
	argValue argKind = iota // the number itself
	argData                 // an address: offset into the program's data
	argFD                   // a descriptor: index into the program's files
	argSaved                // the result of an earlier call, stored in the data
)

// Arg is one argument of a system call in a [Program].
type Arg struct {
	kind  argKind
	value uint64
}

// Value passes a number as it is.
func Value[T ~int | ~int32 | ~int64 | ~uint | ~uint32 | ~uint64 | ~uintptr](v T) Arg {
	return Arg{kind: argValue, value: uint64(v)}
}

// Slot is a place in a program's data that receives the result of a call.
type Slot uint32

// noSave is init.c's NO_SAVE.
const noSave Slot = 0xffffffff

// Step is one system call of a [Program].
type Step struct {
	Stage string // the group that the call belongs to, for errors: "mount", "landlock"
	Label string // the call as a reader should see it
	Want  int    // 0: must succeed; else the errno it must fail with (a canary probe)
	Want2 int    // a second errno that is as good as Want, or 0

	nr    uint32
	flags uint8
	save  Slot
	args  [6]Arg
}

// Flags of a step; the values are init.c's STEP_*.
const (
	stepExec   = 1 << iota // execve: a candidate that does not exist lets the next one be tried
	stepIgnore             // the result does not matter
	stepReady              // tell the supervisor that all before this has succeeded
)

// Ignore makes the result of the call not matter.
func (s *Step) Ignore() *Step { s.flags |= stepIgnore; return s }

// Refused makes the call a canary probe: it must fail with errno, or with
// other when that is not 0.
func (s *Step) Refused(errno, other int) *Step { s.Want, s.Want2 = errno, other; return s }

// Save stores the call's result where [Program.Saved] finds it.
func (s *Step) Save(to Slot) *Step { s.save = to; return s }

// String returns the call as one line.
func (s *Step) String() string {
	line := s.Stage + ": " + s.Label
	if s.Want != 0 {
		line += fmt.Sprintf(" must fail with errno %d", s.Want)
	}
	return line
}

// Program is a list of system calls, the data that they point to and the
// descriptors that they use. The zero value is ready for use.
type Program struct {
	Steps []*Step

	data   []byte
	relocs []uint32 // offsets of 8-byte words in data that hold offsets into data
	files  []int
}

// Call appends a system call. label is how it is shown; "%" is not special.
func (p *Program) Call(stage, label string, nr uintptr, args ...Arg) *Step {
	s := &Step{Stage: stage, Label: label, nr: uint32(nr), save: noSave}
	copy(s.args[:], args)
	p.Steps = append(p.Steps, s)
	return s
}

// Exec appends an execve. Candidates appended one after the other are tried in
// order, as execvp(3) tries PATH; ready marks the first one.
func (p *Program) Exec(label string, nr uintptr, ready bool, args ...Arg) {
	s := p.Call("exec", label, nr, args...)
	s.flags |= stepExec
	if ready {
		s.flags |= stepReady
	}
}

// File adds a descriptor of this process, which must stay open until the
// program has been sent, and returns the argument that names it inside.
func (p *Program) File(fd int) Arg {
	for i, have := range p.files {
		if have == fd {
			return Arg{kind: argFD, value: uint64(i)}
		}
	}
	p.files = append(p.files, fd)
	return Arg{kind: argFD, value: uint64(len(p.files) - 1)}
}

// Bytes adds data and returns its address as an argument, aligned to 8 bytes.
func (p *Program) Bytes(b []byte) Arg {
	for len(p.data)%8 != 0 {
		p.data = append(p.data, 0)
	}
	off := len(p.data)
	p.data = append(p.data, b...)
	return Arg{kind: argData, value: uint64(off)}
}

// String adds a NUL-terminated string and returns its address.
func (p *Program) String(s string) Arg { return p.Bytes(append([]byte(s), 0)) }

// Words adds an array of 64-bit words in which each Arg made by Bytes or
// String becomes an address: argv, envp, struct sock_fprog.
func (p *Program) Words(words ...Arg) Arg {
	at := p.Bytes(make([]byte, 8*len(words)))
	for i, w := range words {
		off := uint32(at.value) + uint32(8*i)
		binary.LittleEndian.PutUint64(p.data[off:], w.value)
		if w.kind == argData {
			p.relocs = append(p.relocs, off)
		}
	}
	return at
}

// Strings adds a NULL-terminated array of strings.
func (p *Program) Strings(list []string) Arg {
	words := make([]Arg, 0, len(list)+1)
	for _, s := range list {
		words = append(words, p.String(s))
	}
	return p.Words(append(words, Value(0))...)
}

// Inside returns the address off bytes inside data made by Bytes.
func (p *Program) Inside(data Arg, off int) Arg {
	return Arg{kind: argData, value: data.value + uint64(off)}
}

// Slot returns a place for a result inside data made by Bytes, off bytes in.
func (p *Program) Slot(data Arg, off int) Slot { return Slot(data.value) + Slot(off) }

// NewSlot returns a fresh place for a result.
func (p *Program) NewSlot() Slot { return p.Slot(p.Bytes(make([]byte, 8)), 0) }

// Saved passes the result that an earlier call stored in slot.
func (p *Program) Saved(slot Slot) Arg { return Arg{kind: argSaved, value: uint64(slot)} }

// Text lists the calls, one a line.
func (p *Program) Text() string {
	var b strings.Builder
	for _, s := range p.Steps {
		b.WriteString(s.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// planMaxFiles is init.c's MAX_FDS.
const planMaxFiles = 250

// Sizes of init.c's struct plan and struct step.
const (
	planSize  = 32
	stepSize  = 72
	planMagic = 0x4147504c
)

// encode lays the program out as init.c reads it.
func (p *Program) encode() []byte {
	stepsAt := planSize
	relocsAt := stepsAt + stepSize*len(p.Steps)
	dataAt := (relocsAt + 4*len(p.relocs) + 7) &^ 7
	out := make([]byte, dataAt+len(p.data))
	le := binary.LittleEndian
	for i, v := range []int{planMagic, len(p.Steps), len(p.relocs), len(p.files), stepsAt, relocsAt, dataAt, len(out)} {
		le.PutUint32(out[4*i:], uint32(v))
	}
	for i, s := range p.Steps {
		b := out[stepsAt+stepSize*i:]
		le.PutUint32(b, s.nr)
		le.PutUint16(b[4:], uint16(i)) // init echoes it; Go finds stage and label by index
		b[6] = s.flags
		le.PutUint16(b[14:], uint16(-s.Want))
		le.PutUint16(b[16:], uint16(-s.Want2))
		le.PutUint32(b[20:], uint32(s.save))
		for k, a := range s.args {
			b[8+k] = byte(a.kind)
			le.PutUint64(b[24+8*k:], a.value)
		}
	}
	for i, off := range p.relocs {
		le.PutUint32(out[relocsAt+4*i:], off)
	}
	copy(out[dataAt:], p.data)
	return out
}
