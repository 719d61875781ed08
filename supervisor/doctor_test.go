package supervisor

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/agentguard/agentguard/internal/mountinfo"
)

func TestHypervisorFlag(t *testing.T) {
	for in, want := range map[string]bool{
		"processor\t: 0\nflags\t\t: fpu sse hypervisor lahf_lm\nbugs\t\t:\n": true,
		"flags : fpu sse\n":                          false,
		"model name\t: hypervisor\nflags\t\t: fpu\n": false,
		"flags\t\t: nohypervisor hypervisors\n":      false,
		"Features\t: fp asimd evtstrm\n":             false,
		"flags":                                      false,
		"":                                           false,
		"flags: fpu\nflags: hypervisor\n":            false, // all processors alike: the first counts
		"\x00\xff: \x1b]0;x\x07\nflags\t: a\x00b hypervisor ": true,
	} {
		if got := hypervisorFlag([]byte(in)); got != want {
			t.Errorf("%q: %v, want %v", in, got, want)
		}
	}
}

func TestRootKind(t *testing.T) {
	for in, want := range map[string]string{
		"27 1 254:0 / / rw - ext4 /dev/vda rw\n31 27 0:28 / /sys/fs/cgroup rw - cgroup2 none rw\n": "ext4",
		"27 1 0:1 / / rw - rootfs rootfs rw\n28 27 0:2 / / rw - overlay overlay rw\n":              "overlay",
		"1 1 0:1 / /a rw - tmpfs agentguard-root rw":                                               "",
		"": "",
	} {
		if kind := rootKind(slices.Collect(mountinfo.All([]byte(in)))); kind != want {
			t.Errorf("%q: root is %q, want %q", in, kind, want)
		}
	}
}

func TestIdentityMap(t *testing.T) {
	for in, want := range map[string]bool{
		"         0          0 4294967295\n":  true,
		"":                                    true,
		"0 1000 1\n":                          false,
		"0 0 65536\n":                         false,
		"0 0 4294967295\n1 1 1\n":             false,
		"         0     100000      65536\n":  false,
		"0 0 4294967295 0\n":                  false,
		"\x00 0 4294967295":                   false,
		"0 0 42949672950000000000000000000\n": false,
	} {
		if got := identityMap([]byte(in)); got != want {
			t.Errorf("%q: %v, want %v", in, got, want)
		}
	}
}

func TestParseStatus(t *testing.T) {
	s := parseStatus([]byte("Name:\tSeccomp:\\n2\nCapBnd:\t000001fffeffffff\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp:\t0\nline without\n:\n\xff\xfe:\x00\n"))
	for name, want := range map[string]string{"Name": "Seccomp:\\n2", "Seccomp": "2", "NoNewPrivs": "1", "CapEff": ""} {
		if s[name] != want {
			t.Errorf("%s is %q, want %q", name, s[name], want)
		}
	}
	for in, want := range map[string][]string{
		"40\n":  {"CAP_SYS_RESOURCE"},
		"41":    {"CAP_SYS_RESOURCE", "capability 41"},
		"64":    nil,
		"-1":    nil,
		"":      nil,
		"zwölf": nil,
	} {
		if got := boundedCaps(s, []byte(in)); !slices.Equal(got, want) {
			t.Errorf("cap_last_cap %q: %q, want %q", in, got, want)
		}
	}
	if got := boundedCaps(parseStatus([]byte("CapBnd:\t0000000000000000\n")), []byte("40")); !slices.Equal(got, []string{"41 of 41"}) {
		t.Errorf("an empty bounding set: %q", got)
	}
	if got := boundedCaps(parseStatus([]byte("CapBnd:\t-1\n")), []byte("40")); got != nil {
		t.Errorf("no bounding set: %q", got)
	}
}

func TestLacking(t *testing.T) {
	for set, want := range map[uint64]string{0: "CAP_CHOWN CAP_SYS_PTRACE", 1: "CAP_SYS_PTRACE", 1 | 1<<19: "", 1<<64 - 1: ""} {
		if got := strings.Join(lacking(set, []int{0, 19}), " "); got != want {
			t.Errorf("%#x: %q, want %q", set, got, want)
		}
	}
}

func TestParseNS(t *testing.T) {
	for in, want := range map[string]uint64{
		"pid:[4026531836]": 0xeffffffc, "pid:[1]": 1,
		"uts:[1]": 0, "pid:[]": 0, "pid:[-1]": 0, "pid:[1": 0, "": 0, "pid:[99999999999999999999999]": 0,
	} {
		if got, ok := parseNS(in, "pid"); ok != (want != 0) || ok && got != want {
			t.Errorf("%q: %d, %v", in, got, ok)
		}
	}
	links := map[string]string{
		"/proc/self/ns/pid": "pid:[4026532000]", "/proc/self/ns/uts": "uts:[4026531838]",
		"/proc/self/ns/ipc": "garbage", // and no cgroup namespace in this kernel
	}
	got := foreignNamespaces(func(p string) (string, error) {
		if l, ok := links[p]; ok {
			return l, nil
		}
		return "", os.ErrNotExist
	})
	if !slices.Equal(got, []string{"pid"}) {
		t.Errorf("foreign: %q", got)
	}
}

func TestContainerMarks(t *testing.T) {
	for in, want := range map[string]string{
		"0::/system.slice/docker-0123.scope\n":                            "docker",
		"5:memory:/kubepods/besteffort/pod1/2\n":                          "kubepods",
		"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-4.scope\n": "kubepods",
		"0::/lxc.payload.x\n":                                             "lxc",
		"0::/user.slice/user-1000.slice/session-1.scope\n":                "",
		"0::/user.slice/my-projects/secs\n":                               "",
		"0::/":                                                            "",
		"":                                                                "",
		"0::/machine.slice/libpod-4f.scope/container\n\x00\xff\x1b[31m/docker\x07": "docker",
	} {
		if got := cgroupMark([]byte(in)); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := environValue([]byte("PATH=/bin\x00container=podman\x1b[2J\nx\x00"), "container"); got != `$'podman\x1b[2J'` {
		t.Errorf("container is %s", got)
	}
	if got := environValue([]byte("xcontainer=a\x00container"), "container"); got != "" {
		t.Errorf("container is %s", got)
	}
}

// The root of an image alone is no container: machines boot from images.
func TestContainerRoot(t *testing.T) {
	has := func(p string) bool { return p == "/.dockerenv" }
	var s sign
	overlay := []mountinfo.Mount{{ID: 1, Point: "/", Kind: "overlay"}}
	s.rootOf(has, overlay)
	if s.Found || s.Name != "" || len(s.Evidence) != 3 {
		t.Errorf("with nothing else: %+v", s)
	}
	s = sign{Found: true}
	s.rootOf(has, overlay)
	if s.Name != "docker" || len(s.Evidence) != 2 {
		t.Errorf("in a container: %+v", s)
	}
}

func TestConfined(t *testing.T) {
	for label, want := range map[string]bool{
		"": false, "unconfined": false, "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023": false, "kernel": false, "_": false,
		"'docker-default (enforce)'": true, "system_u:system_r:container_t:s0:c1,c2": true,
	} {
		if got := confined(label); got != want {
			t.Errorf("%q: %v", label, got)
		}
	}
}

func TestErrataText(t *testing.T) {
	for bits, want := range map[int]string{0: "no erratum is known to be fixed", 0xc: "errata fixed: 3, 4", 0x7: "errata fixed: 1, 2, 3"} {
		if got := errataText(bits); got != want {
			t.Errorf("%#x: %q", bits, got)
		}
	}
}

// What cgroups say, and whether a run's limit can be set by it.
func TestJudgeController(t *testing.T) {
	for _, c := range []struct {
		t    tree
		ok   bool
		says string
	}{
		{tree{have: []string{"memory"}, on: []string{"memory"}}, true, "limited by"},
		{tree{have: []string{"memory"}, on: []string{"memory"}, busy: true}, true, "limited by"},
		{tree{have: []string{"memory"}}, true, "first run switches on"},
		{tree{have: []string{"memory"}, busy: true}, false, "processes live in the root"},
		{tree{have: []string{"pids"}}, false, "no memory controller"},
	} {
		ok, says, remedy := c.t.judge("memory", "CONFIG_MEMCG=y")
		if ok != c.ok || !strings.Contains(says, c.says) || ok != (remedy == "") {
			t.Errorf("%+v: %v, %q, %q", c.t, ok, says, remedy)
		}
	}
}

func TestGone(t *testing.T) {
	for stat, want := range map[string]bool{
		"7 (sh) S 1 7": false, "7 (sh) Z 1 7": true, "7 (Z) R) R 1": false, "7 (a) Z) X 1": true, "": true, "7 (": false, ")": true,
	} {
		if got := gone([]byte(stat)); got != want {
			t.Errorf("%q: %v", stat, got)
		}
	}
}

func TestTry(t *testing.T) {
	x := &examination{root: false}
	x.try("a b", "c d", "good", x.asRoot(func() error { t.Error("tried"); return nil }), cellMissing, "remedy")
	x.try("a b", "e", "good", nil, cellMissing, "remedy")
	x.try("a b", "f", "good", errors.New("bad\nline\x1b[31m"), cellThin, "remedy")
	want := []cell{
		{"a-b.c-d", "a b", "c d", cellUnknown, "only root can try this", rootRemedy},
		{"a-b.e", "a b", "e", cellOK, "good", ""},
		{"a-b.f", "a b", "f", cellThin, "bad; line; [31m", "remedy"},
	}
	if d := cmp.Diff(want, x.Layers); d != "" {
		t.Error(d)
	}
}

// Whatever a file of the host or of a container says, one line of it comes out,
// and nothing that steers a terminal.
func FuzzDoctorText(f *testing.F) {
	for _, s := range []string{"docker\n", "\x1b]0;x\x07", "\u202e\u2066", "a\r\nb", "\xff\xfe", "flags: hypervisor", "0 0 4294967295", "27 1 254:0 / / rw - ext4 /dev/vda rw", "CapBnd:\tff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := inside{Container: sign{Name: wordOf(b)}}
		in.VM.add("says " + environValue(b, "container"))
		in.Envelope.add(strings.Join(boundedCaps(parseStatus(b), b), ", "))
		hypervisorFlag(b)
		identityMap(b)
		cgroupMark(b)
		for _, line := range in.lines() {
			if strings.ContainsFunc(line, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }) {
				t.Errorf("%q", line)
			}
		}
		for _, line := range wrap(oneLine(string(b))) {
			if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) {
				t.Errorf("%q", line)
			}
		}
	})
}
