package seccomp

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// seccompData is struct seccomp_data.
type seccompData struct {
	nr   uint32
	arch uint32
	args [6]uint64
}

func (d seccompData) word(t *testing.T, off uint32) uint32 {
	t.Helper()
	switch {
	case off == offNumber:
		return d.nr
	case off == offArch:
		return d.arch
	case off >= offArgs && off < 64 && off%4 == 0:
		v := d.args[(off-offArgs)/8]
		if off%8 != 0 {
			v >>= 32
		}
		return uint32(v)
	}
	t.Fatalf("load from offset %d", off)
	return 0
}

// interpret runs filter on d as the kernel does, and fails on what the kernel
// would refuse to install.
func interpret(t *testing.T, filter []unix.SockFilter, d seccompData) Verdict {
	t.Helper()
	v, _ := count(t, filter, d)
	return v
}

// count is interpret, and the number of instructions that were executed.
func count(t *testing.T, filter []unix.SockFilter, d seccompData) (v Verdict, executed int) {
	t.Helper()
	var acc uint32
	for pc := 0; pc < len(filter); pc++ {
		i := filter[pc]
		executed++
		var taken bool
		switch i.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			acc = d.word(t, i.K)
			continue
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			acc &= i.K
			continue
		case unix.BPF_RET | unix.BPF_K:
			return Verdict(i.K), executed
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(i.K)
			continue
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			taken = acc == i.K
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			taken = acc >= i.K
		default:
			t.Fatalf("instruction %d has code %#x", pc, i.Code)
		}
		if taken {
			pc += int(i.Jt)
		} else {
			pc += int(i.Jf)
		}
	}
	t.Fatal("the filter runs past its end")
	return 0, 0
}

func decode(b []byte) []unix.SockFilter {
	var p []unix.SockFilter
	for ; len(b) >= 8; b = b[8:] {
		p = append(p, unix.SockFilter{Code: binary.LittleEndian.Uint16(b), Jt: b[2], Jf: b[3], K: binary.LittleEndian.Uint32(b[4:])})
	}
	return p
}

var (
	arches = []*arch{&x86_64, &aarch64}
	// every grantable call that is not allowed, of both architectures
	debugger = []string{"ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "userfaultfd"}
)

func archName(a *arch) string {
	if a.x32 {
		return "amd64"
	}
	return "arm64"
}

// interesting are argument values at which some rule changes its mind.
func interesting() []uint64 {
	low := []uint64{
		0, 1, 2, 3, 5, 8, 10, 16, 17, 31, 35, 0x11, 0x20, 0x80, 0x200, 0x400, 0x800, 0x80001, 0x80003, 0x801, 0x803, 0x8080a,
		6, 132, 136, 256, 262, 0x5401, 0x5411, 0x5412, 0x5413, 0x541b, 0x541c, 0x5423, 0x20008, 0x40000, 0x40008,
		0x10000000, 0x20000000, 0x40000000, 0x02000000, 0x04000000, 0x08000000, 0x20000, 0x3d0f00, 0x100000, 0xffffffff, 0x7fffffff, 0x80000000,
		0o755, 0o1755, 0o2755, 0o4755, 0o6000, 0o100, 0o101, 0o20000000, 0o20200000, 0o2000100,
	}
	all := slices.Clone(low)
	for _, v := range low {
		all = append(all, v|1<<32, v|0xffffffff<<32)
	}
	return all
}

// The filters and Decide agree on every number and on arguments at every border.
func TestFilterAgreesWithDecide(t *testing.T) {
	for _, a := range arches {
		for _, extra := range [][]string{nil, debugger} {
			if testing.Short() && (a != native || extra != nil) {
				continue // no kernel has a part in it
			}
			t.Run(fmt.Sprintf("%s/%d", archName(a), len(extra)), func(t *testing.T) {
				filter, tried := decode(encode(a.assemble(Config{Extra: extra}))), map[action]bool{}
				agree := func(nr uint32, args [6]uint64) {
					want := a.decide(nr, args, Config{Extra: extra})
					if got := interpret(t, filter, seccompData{nr, a.audit, args}); got != want {
						t.Errorf("call %d %#x: filter %#x, Decide %#x", nr, args, got, want)
					}
				}
				for _, nr := range numbers() {
					agree(nr, [6]uint64{})
					c := a.byNumber(int(nr))
					if c == nil || c.action < ruled {
						agree(nr, [6]uint64{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)})
						continue
					}
					ys := interesting()
					for _, x := range ys {
						if tried[c.action] { // another number of the same rule
							ys = []uint64{0, x}
						}
						for _, y := range ys {
							agree(nr, [6]uint64{x, y})
							agree(nr, [6]uint64{x, 1, y})
							agree(nr, [6]uint64{x, 3 | y<<4, 6})
							agree(nr, [6]uint64{none, none, x, y})
						}
					}
					tried[c.action] = true
				}
			})
		}
	}
}

// numbers are all that a table may hold, the x32 ones, and the ends of the range.
func numbers() []uint32 {
	var all []uint32
	for n := range uint32(1001) {
		all = append(all, n, x32Bit|n)
	}
	return append(all, x32Bit-1, 0x7fffffff, 0x80000000, 0x80000000|59, 0xc0000000, 0xfffffffe, 0xffffffff)
}

// The search is right for lists of any length, those at which a jump gets too
// long for 8 bits among them: an answer of two instructions makes even distances.
func TestSearch(t *testing.T) {
	for n := 1; n <= 600; n++ {
		spans := make(spanList, n)
		for i := range spans {
			spans[i] = span{first: uint32(2 * i), verdict: Verdict(i)}
		}
		wantEach(t, spans, func(nr uint32) Verdict { return Verdict(nr / 2) })
		spans[0].rule = rule{ruleCase{}} // allows whatever the arguments
		wantEach(t, spans, func(nr uint32) Verdict {
			if nr < 2 {
				return verdictAllow
			}
			return Verdict(nr / 2)
		})
	}
}

func wantEach(t *testing.T, spans spanList, want func(nr uint32) Verdict) {
	t.Helper()
	filter := append([]unix.SockFilter{load(offNumber)}, spans.search(nil)...)
	for nr := range uint32(2 * len(spans)) {
		if got := interpret(t, filter, seccompData{nr: nr}); got != want(nr) {
			t.Fatalf("%d spans: number %d gets %#x, not %#x", len(spans), nr, got, want(nr))
		}
	}
}

func TestForeignCallsKill(t *testing.T) {
	foreign := []uint32{unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, unix.AUDIT_ARCH_RISCV64, 0, ^uint32(0)}
	for _, a := range arches {
		for name, filter := range map[string][]unix.SockFilter{"command": a.assemble(Config{}), "init": a.only(initCalls)} {
			for _, other := range arches {
				if other != a {
					foreign = append(foreign, other.audit)
				}
			}
			for _, audit := range foreign {
				if audit == a.audit {
					continue
				}
				for _, nr := range numbers() {
					if v := interpret(t, filter, seccompData{nr: nr, arch: audit}); v != verdictKill {
						t.Fatalf("%s %s: call %d of arch %#x: %#x", archName(a), name, nr, audit, v)
					}
				}
			}
		}
	}
	for n := range uint32(1001) {
		if v := interpret(t, x86_64.assemble(Config{}), seccompData{nr: x32Bit | n, arch: x86_64.audit}); v != verdictKill {
			t.Errorf("x32 call %d: %#x", n, v)
		}
	}
	if v := interpret(t, x86_64.assemble(Config{}), seccompData{nr: skipped, arch: x86_64.audit}); v.Errno() != unix.ENOSYS {
		t.Errorf("call -1: %#x", v)
	}
}

func TestInitFilter(t *testing.T) {
	for _, a := range arches {
		filter := decode(encode(a.only(initCalls)))
		for _, nr := range numbers() {
			want := verdictKill
			if c := a.byNumber(int(nr)); c != nil && slices.Contains(initCalls, c.name) {
				want = verdictAllow
			}
			if v := interpret(t, filter, seccompData{nr: nr, arch: a.audit}); v != want {
				t.Errorf("%s: call %d: %#x, want %#x", archName(a), nr, v, want)
			}
		}
		for _, name := range initCalls {
			if a.byName(name) == nil {
				t.Errorf("%s has no %s", archName(a), name)
			}
		}
	}
}

// The kernel's own checks (kernel/seccomp.c seccomp_check_filter,
// net/core/filter.c bpf_check_classic): jumps stay inside, the end returns.
func TestFiltersAreInstallable(t *testing.T) {
	for _, a := range arches {
		for _, p := range [][]unix.SockFilter{a.assemble(Config{}), a.assemble(Config{Extra: debugger}), a.only(initCalls)} {
			if len(p) > 4096 { // BPF_MAXINSNS
				t.Errorf("%s: %d instructions", archName(a), len(p))
			}
			for pc, i := range p {
				far := max(int(i.Jt), int(i.Jf))
				if i.Code == unix.BPF_JMP|unix.BPF_JA {
					far = int(i.K)
				}
				if pc+1+far >= len(p) && i.Code&7 != unix.BPF_RET {
					t.Errorf("%s: instruction %d leaves the filter", archName(a), pc)
				}
			}
		}
	}
}

func TestExtra(t *testing.T) {
	for _, name := range debugger {
		c := native.byName(name)
		if c == nil || !Permissible(name) {
			t.Fatalf("%s: known %v, permissible %v", name, c != nil, Permissible(name))
		}
		nr := int(c.nr)
		if v := (Config{}).Decide(nr, [6]uint64{}); v.Errno() != unix.EPERM {
			t.Errorf("%s: %#x", name, v)
		}
		filter, err := Config{Extra: []string{name}}.Filter()
		if err != nil {
			t.Fatal(err)
		}
		if v := interpret(t, decode(filter), seccompData{nr: uint32(nr), arch: native.audit}); v != verdictAllow {
			t.Errorf("%s, granted: %#x", name, v)
		}
	}
}

func TestExtraErrors(t *testing.T) {
	for name, want := range map[string]string{
		"ptrce":          `no system call "ptrce": did you mean ptrace?`,
		"Mount":          `no system call "Mount": did you mean mount?`,
		"":               `no system call ""`,
		"make_coffee":    `no system call "make_coffee"`,
		"mount":          "mount can not be allowed: the mount view is fixed",
		"io_uring_setup": "io_uring_setup can not be allowed",
		"clone3":         "clone3 can not be allowed: its arguments are in memory",
		"openat2":        "openat2 can not be allowed: its mode is in memory",
		"fchmodat":       "fchmodat can not be allowed: it may not set set-user-id",
		"socket":         "socket can not be allowed: it may make UNIX",
	} {
		filter, err := Config{Extra: []string{"kcmp", name}}.Filter()
		if err == nil || filter != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
		if Permissible(name) {
			t.Errorf("%q is permissible", name)
		}
	}
	_, err := Config{Extra: []string{"bpf", "read", "xyzzy"}}.Filter()
	if err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("want one line for bpf and one for xyzzy: %v", err)
	}
}

func TestNames(t *testing.T) {
	for _, a := range arches {
		for i, c := range a.calls {
			if i > 0 && c.nr <= a.calls[i-1].nr {
				t.Errorf("%s: %s is out of order", archName(a), c.name)
			}
			if (c.action != allow) && c.why == "" {
				t.Errorf("%s: %s has no reason", archName(a), c.name)
			}
		}
	}
	if got := Name(unix.SYS_OPENAT); got != "openat" {
		t.Errorf("openat is %s", got)
	}
	for nr, want := range map[int]string{123456: "syscall_123456", -1: "syscall_-1", 999: "syscall_999"} {
		if got := Name(nr); got != want {
			t.Errorf("Name(%d) = %s", nr, got)
		}
	}
}

func BenchmarkFilter(b *testing.B) {
	for b.Loop() {
		if _, err := (Config{}).Filter(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkInitFilter(b *testing.B) {
	for b.Loop() {
		InitFilter()
	}
}
