package seccomp

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A modeProbe is a call that sets the mode of a file, or would if it made one.
type modeProbe struct {
	call  string
	flags uint64 // of open and openat
	mode  uint64
	want  unix.Errno
}

// x86OnlyModes are the calls that arm64 never had.
var x86OnlyModes = []string{"open", "creat", "chmod", "mkdir", "mknod"}

const atCwd = ^uint64(99) // AT_FDCWD

var modeProbes = slices.Concat(
	// mkdir drops the bits by itself: refused all the same.
	eachMode("chmod", 0), eachMode("fchmod", 0), eachMode("fchmodat", 0), eachMode("fchmodat2", 0),
	eachMode("mkdir", 0), eachMode("mkdirat", 0), eachMode("creat", 0),
	eachMode("mknod", unix.S_IFREG), eachMode("mknodat", unix.S_IFREG),
	opens("open"), opens("openat"),
)

func eachMode(call string, kind uint64) []modeProbe {
	return []modeProbe{
		{call, 0, kind | 0o4755, unix.EPERM},
		{call, 0, kind | 0o2755, unix.EPERM},
		{call, 0, kind | 0o6755, unix.EPERM},
		{call, 0, kind | 0o4000, unix.EPERM},
		{call, 0, kind | 0o2010 | high, unix.EPERM}, // the kernel drops the upper half
		{call, 0, kind | 0o755, 0},
		{call, 0, kind | 0o1777, 0},
		{call, 0, kind | 0o700 | 0o6000<<32, 0},
		{call, 0, kind | 0o755 | 0xffff0000, 0}, // and more: umode_t has 16 bits
	}
}

func opens(call string) []modeProbe {
	const ordinary = unix.O_RDONLY | unix.O_CLOEXEC
	return []modeProbe{
		{call, unix.O_CREAT | unix.O_WRONLY, 0o4755, unix.EPERM},
		{call, unix.O_CREAT | unix.O_EXCL | unix.O_RDWR | high, 0o2755, unix.EPERM},
		{call, unix.O_CREAT, 0o6755 | high, unix.EPERM},
		{call, unix.O_TMPFILE | unix.O_RDWR, 0o4755, unix.EPERM},
		{call, unix.O_TMPFILE | unix.O_RDWR, 0o2755, unix.EPERM},
		{call, unix.O_CREAT | unix.O_WRONLY, 0o755, 0},
		{call, unix.O_CREAT | unix.O_WRONLY, 0o700 | 0xffff0000, 0},
		{call, unix.O_TMPFILE | unix.O_RDWR, 0o700, 0},
		{call, ordinary, 0, 0},
		// What C libraries leave in the register when no file is made.
		{call, ordinary, 0o4755, 0},
		{call, ordinary, none, 0},
		{call, ordinary | unix.O_CREAT<<32, 0o6755, 0},
		{call, unix.O_DIRECTORY, none, 0}, // in unix.O_TMPFILE, but makes nothing
	}
}

func (p modeProbe) String() string { return fmt.Sprintf("%s %#o %#o", p.call, p.flags, p.mode) }

// args are those of the call on a path, or on a descriptor for fchmod.
func (p modeProbe) args(path uint64) [6]uint64 {
	switch p.call {
	case "fchmodat", "fchmodat2", "mkdirat", "mknodat":
		return [6]uint64{atCwd, path, p.mode}
	case "open":
		return [6]uint64{path, p.flags, p.mode}
	case "openat":
		return [6]uint64{atCwd, path, p.flags, p.mode}
	}
	return [6]uint64{path, p.mode}
}

// pinned says what is wrong with the answers of rules to the probes.
func pinned() (wrong []string) {
	for _, a := range arches {
		for _, p := range modeProbes {
			c := a.byName(p.call)
			if c == nil && !a.x32 && slices.Contains(x86OnlyModes, p.call) {
				continue
			}
			if c == nil {
				wrong = append(wrong, fmt.Sprintf("%s has no %s", archName(a), p.call))
				continue
			}
			// Naming it changes nothing.
			if got := a.decide(uint32(c.nr), p.args(none), Config{Extra: []string{p.call}}); got.Errno() != p.want || got == verdictKill {
				wrong = append(wrong, fmt.Sprintf("%s: %s: %#x, want %v", archName(a), p, got, p.want))
			}
		}
	}
	return wrong
}

func TestModes(t *testing.T) {
	for _, w := range pinned() {
		t.Error(w)
	}
	for _, a := range arches {
		for _, p := range modeProbes {
			if c := a.byName(p.call); c != nil && c.grantable() {
				t.Errorf("%s: a policy may grant %s", archName(a), p.call)
			}
		}
	}
	if unix.O_TMPFILE&^unix.O_DIRECTORY != tmpFile {
		t.Errorf("__O_TMPFILE is %#o", unix.O_TMPFILE&^unix.O_DIRECTORY)
	}
}

// Every single change of a rule on modes makes some probe fail.
func TestModeRulesArePinned(t *testing.T) {
	if pinned() != nil {
		t.Fatal("the rules are wrong as they are")
	}
	for _, action := range []action{modeRule1, modeRule2, openRule, openatRule} {
		was := rules[action]
		for name, mutant := range was.mutants() {
			rules[action] = mutant
			if pinned() == nil {
				t.Errorf("rule %d: nothing notices: %s", action, name)
			}
		}
		rules[action] = was
	}
}

func (r rule) mutants() map[string]rule {
	all := map[string]rule{}
	for i, c := range r {
		all[fmt.Sprintf("case %d is missing", i)] = slices.Delete(slices.Clone(r), i, i+1)
		for j, test := range c {
			change := func(what string, with ...argTest) {
				m := slices.Clone(r)
				m[i] = slices.Replace(slices.Clone(c), j, j+1, with...)
				all[fmt.Sprintf("case %d test %d: %s", i, j, what)] = m
			}
			change("missing")
			for arg := range 6 {
				if m := test; arg != test.arg {
					m.arg = arg
					change(fmt.Sprintf("of argument %d", arg), m)
				}
			}
			for bit := range 32 {
				m := test
				m.mask ^= 1 << bit
				if test.mask&(1<<bit) != 0 || bit == 6 || bit == 22 { // or a flag of openings
					change(fmt.Sprintf("bit %d flipped in the mask", bit), m)
				}
			}
			m := test
			m.upper = true
			change("upper half", m)
			m = test
			m.except = true
			change("turned around", m)
			m = test
			m.in = nil
			change("no values", m)
		}
	}
	return all
}

// An opening without a mode costs little more than the search for its number,
// since the kernel runs the filter for each: it remembers only those calls that
// are allowed whatever their arguments.
func TestOpeningIsCheap(t *testing.T) {
	const searched, judged = 12, 4
	for _, a := range arches {
		filter := a.assemble(Config{})
		for _, name := range []string{"open", "openat"} {
			c := a.byName(name)
			if c == nil {
				continue
			}
			args := modeProbe{call: name, flags: unix.O_RDONLY | unix.O_CLOEXEC, mode: none}.args(none)
			v, n := count(t, filter, seccompData{uint32(c.nr), a.audit, args})
			t.Logf("%s: %s: %d instructions of %d", archName(a), name, n, len(filter))
			if v != verdictAllow || n > searched+judged {
				t.Errorf("%s: %s: %#x after %d instructions", archName(a), name, v, n)
			}
		}
	}
}

// makeModes makes the calls of modeProbes in the working directory.
func makeModes() {
	for i, p := range modeProbes {
		c := native.byName(p.call)
		if c == nil {
			continue
		}
		name := fmt.Sprintf("%d", i)
		switch {
		case p.flags&tmpFile != 0:
			name = "."
		case strings.Contains(p.call, "chmod"), strings.HasPrefix(p.call, "open") && p.flags&unix.O_CREAT == 0 && p.flags&unix.O_DIRECTORY == 0:
			must(os.WriteFile(name, nil, 0o600))
		case p.flags&unix.O_DIRECTORY != 0:
			name = "."
		}
		path, err := unix.BytePtrFromString(name)
		must(err)
		at := uint64(uintptr(unsafe.Pointer(path)))
		if p.call == "fchmod" {
			fd, err := unix.Open(name, unix.O_RDONLY, 0)
			must(err)
			at = uint64(fd)
		}
		fmt.Printf("%s\t%d\n", p, rawCall(int(c.nr), p.args(at)))
	}
}

// The kernel makes no file with the bits under the filter, and makes them without.
func TestVictimModes(t *testing.T) {
	for _, part := range []string{"modes", "modes-bare"} {
		dir := t.TempDir()
		out, err := victimIn(t, part, dir)
		if err != nil {
			t.Fatalf("%s: %v\n%s", part, err, exitText(err))
		}
		lines := bufio.NewScanner(bytes.NewReader(out))
		for _, p := range modeProbes {
			if native.byName(p.call) == nil {
				continue
			}
			want := p.want
			if part == "modes-bare" {
				want = 0
			}
			if !lines.Scan() {
				t.Fatalf("%s: the victim stopped before %s", part, p)
			}
			label, got, _ := strings.Cut(lines.Text(), "\t")
			// file systems without O_TMPFILE, kernels without fchmodat2
			lacks := got == fmt.Sprint(int(unix.EOPNOTSUPP)) || got == fmt.Sprint(int(unix.ENOSYS))
			if label != p.String() || got != fmt.Sprint(int(want)) && (want != 0 || !lacks) {
				t.Errorf("%s: %s: the kernel says %s, want %d for %s", part, label, got, want, p)
			}
		}
		if n := privileged(t, dir); (n == 0) != (part == "modes") {
			t.Errorf("%s: %d files with set-user-id or set-group-id bits", part, n)
		}
	}
}

// privileged counts the files below dir that have one of the bits.
func privileged(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			n++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
