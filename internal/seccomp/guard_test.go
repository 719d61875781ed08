package seccomp

import (
	"testing"

	"golang.org/x/sys/unix"
)

// PID 1 is out of reach, every other process is not, and all other calls are as without.
func TestGuard(t *testing.T) {
	for _, a := range arches {
		filter := decode(encode(a.assemble(Config{Guard: true})))
		for _, c := range a.calls {
			arg := 0
			if c.name == "setpriority" || c.name == "ioprio_set" {
				arg = 1
			}
			for pid, refused := range map[uint64]bool{0: false, 1: true, 2: false, 1 | 1<<32: true, 1 << 32: false} {
				d := seccompData{nr: uint32(c.nr), arch: a.audit}
				if c.name == "ioprio_set" {
					d.args[0] = ioprioProcess
				}
				d.args[arg] = pid
				want := a.decide(d.nr, d.args, Config{})
				if refused && guarded[c.name] != nil {
					want = verdictRefuse
				}
				if c.name == secretMemory {
					want = verdictAbsent
				}
				if got := interpret(t, filter, d); got != want {
					t.Errorf("%s: %s(%#x): %#x, want %#x", archName(a), c.name, pid, got, want)
				}
			}
		}
		for name := range guarded {
			if a.byName(name) == nil {
				t.Errorf("%s has no call %s", archName(a), name)
			}
		}
		// All of a user is PID 1 too, and so may all of a group be.
		for _, c := range []struct {
			name      string
			kind, who uint64
			refused   bool
		}{
			{"setpriority", unix.PRIO_USER, 1, true},
			{"setpriority", unix.PRIO_USER, 0, true},
			{"setpriority", unix.PRIO_USER, 1000, true},
			{"setpriority", unix.PRIO_PGRP, 0, true},
			{"setpriority", unix.PRIO_PGRP, 2, true},
			{"setpriority", unix.PRIO_PGRP, 1, true},
			{"ioprio_set", 3, 1000, true},
			{"ioprio_set", 3, 0, true},
			{"ioprio_set", 2, 0, true},
			{"ioprio_set", 2, 1, true},
		} {
			d := seccompData{nr: uint32(a.byName(c.name).nr), arch: a.audit, args: [6]uint64{c.kind, c.who}}
			if got := interpret(t, filter, d); (got == verdictRefuse) != c.refused {
				t.Errorf("%s: %s(%d, %d): %#x", archName(a), c.name, c.kind, c.who, got)
			}
		}
	}
}

// Where what is written is counted no room is taken without writing; it is given back as ever.
func TestGuardCounted(t *testing.T) {
	for _, a := range arches {
		for mode, want := range map[uint64]Verdict{
			0: verdictUnsupported, unix.FALLOC_FL_KEEP_SIZE: verdictUnsupported, unix.FALLOC_FL_ZERO_RANGE: verdictUnsupported, unix.FALLOC_FL_PUNCH_HOLE: verdictUnsupported,
			unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE: verdictAllow, unix.FALLOC_FL_COLLAPSE_RANGE: verdictAllow, 1<<32 | 3: verdictAllow, 1 << 32: verdictUnsupported,
		} {
			d := seccompData{nr: uint32(a.byName("fallocate").nr), arch: a.audit, args: [6]uint64{3, mode}}
			for _, c := range []Config{{Guard: true, Counted: true}, {Sharing: &Sharing{}, Counted: true}} {
				if got := interpret(t, decode(encode(a.assemble(c))), d); got != want {
					t.Errorf("%s: mode %#x: %#x, want %#x", archName(a), mode, got, want)
				}
			}
			if got := interpret(t, decode(encode(a.assemble(Config{Guard: true}))), d); got != verdictAllow {
				t.Errorf("%s: not counted: %#x", archName(a), got)
			}
			d.nr = uint32(a.byName("prlimit64").nr)
			if d.args[0] = 1; interpret(t, decode(encode(a.assemble(Config{Guard: true, Counted: true}))), d) != verdictRefuse {
				t.Errorf("%s: PID 1 is not guarded", archName(a))
			}
		}
	}
}
