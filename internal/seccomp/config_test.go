package seccomp

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// decide is what a filter is to answer.
func (a *arch) decide(nr uint32, args [6]uint64, c Config) Verdict {
	v, _ := a.judge(nr, args, c)
	return v
}

func (a *arch) decideNotified(nr uint32, args [6]uint64, c Config) Verdict {
	v, _ := a.judgeNotified(nr, args, c)
	return v
}

var situations = map[string]Config{
	"sharing":  {Sharing: &Sharing{}},
	"sockets":  {Sharing: &Sharing{Unix: true}, Extra: append([]string{"shmget"}, debugger...)},
	"metadata": {Sharing: &Sharing{Metadata: true}, Guard: true},
	"guard":    {Guard: true},
	"counted":  {Guard: true, Counted: true},
}

// Whatever takes part in a filter, it agrees with Decide, and the one that reports asks about every
// call that is refused: none is refused unseen.
func TestOneFilter(t *testing.T) {
	for name, c := range situations {
		for _, a := range arches {
			plain, asking := decode(encode(a.assemble(c))), decode(encode(a.assembleWith(c.notifies)))
			for _, nr := range numbers() {
				row := a.byNumber(int(nr))
				values := []uint64{0, none}
				if row != nil {
					if c.narrower(row.name).part != Nothing || row.action >= ruled {
						values = interesting()
					}
				}
				for _, x := range values {
					for _, args := range [][6]uint64{{x}, {0, x}, {1, x}, {x, 1}, {x, 0x80002, 6}, {77, 1, x}, {none, none, x, none}} {
						want := a.decide(nr, args, c)
						if got := interpret(t, plain, seccompData{nr, a.audit, args}); got != want {
							t.Fatalf("%s, %s: call %d %#x: filter %#x, Decide %#x", name, archName(a), nr, args, got, want)
						}
						got := interpret(t, asking, seccompData{nr, a.audit, args})
						if _, by := a.judgeNotified(nr, args, c); by != Nothing && got != verdictNotify || by == Nothing && got == verdictRefuse {
							t.Fatalf("%s, %s: call %d %#x, refused by %d: %#x", name, archName(a), nr, args, by, got)
						}
					}
				}
			}
		}
	}
}

// Who refuses is said: the tables first, then what narrows them.
func TestRefusedBy(t *testing.T) {
	shared, guard := Config{Sharing: &Sharing{}}, Config{Guard: true}
	for _, p := range []struct {
		c    Config
		call string
		args [6]uint64
		want Part
	}{
		{shared, "fchmodat", [6]uint64{0, 0, 0o755}, BySharing},
		{shared, "fchmodat", [6]uint64{0, 0, 0o4755}, ByTable},
		{Config{Sharing: &Sharing{Metadata: true}}, "fchmodat", [6]uint64{0, 0, 0o755}, Nothing},
		{shared, "socket", [6]uint64{unix.AF_INET, unix.SOCK_STREAM}, BySharing},
		{shared, "socket", [6]uint64{unix.AF_PACKET, unix.SOCK_RAW}, ByTable},
		{shared, "ptrace", [6]uint64{}, ByTable},
		{shared, "read", [6]uint64{}, Nothing},
		{shared, "clone3", [6]uint64{}, Nothing}, // ENOSYS
		{shared, "prctl", [6]uint64{unix.PR_SET_MM}, ByNotify},
		{guard, "prlimit64", [6]uint64{1}, ByGuard},
		{guard, "prlimit64", [6]uint64{0}, Nothing},
		{Config{}, "prlimit64", [6]uint64{1}, Nothing},
	} {
		if got := p.c.RefusedBy(int(native.byName(p.call).nr), p.args); got != p.want {
			t.Errorf("%s%#x by %d, want %d", p.call, p.args, got, p.want)
		}
	}
}

// A grant of the policy does not lift what sharing refuses.
func TestExtraIsNarrowed(t *testing.T) {
	c := Config{Extra: []string{"shmget", "ptrace"}, Sharing: &Sharing{}}
	for name, want := range map[string]Verdict{"shmget": verdictRefuse, "ptrace": verdictAllow} {
		if got := native.decide(uint32(native.byName(name).nr), [6]uint64{}, c); got != want {
			t.Errorf("%s: %#x", name, got)
		}
	}
	if _, err := (Config{Extra: []string{"bpf"}, Guard: true}).Filter(); err == nil || !strings.Contains(err.Error(), "bpf") {
		t.Errorf("bpf was granted: %v", err)
	}
}
