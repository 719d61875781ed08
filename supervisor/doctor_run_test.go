package supervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/internal/lostthread"
	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/landlock"
)

// decodeDiagnosis reads a diagnosis back and checks what holds for every one.
func decodeDiagnosis(t *testing.T, out []byte) report {
	t.Helper()
	var r report
	dec := json.NewDecoder(bytes.NewReader(out))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	healthy := true
	for _, c := range r.Layers {
		healthy = healthy && c.State != cellMissing
		if !slices.Contains([]string{cellOK, cellThin, cellMissing, cellUnknown}, c.State) || c.Finding == "" {
			t.Errorf("bad cell %+v", c)
		}
		if (c.State == cellThin || c.State == cellMissing) && c.Remedy == "" {
			t.Errorf("%s is %s, and nothing says what to change", c.ID, c.State)
		}
		if strings.ContainsFunc(c.Finding+c.Remedy, unicode.IsControl) {
			t.Errorf("control characters in %+q", c)
		}
	}
	if r.Healthy != healthy {
		t.Errorf("healthy is %v, with %+v", r.Healthy, r.Layers)
	}
	return r
}

// states are the cells' states by id.
func (r *report) states() map[string]string {
	out := map[string]string{}
	for _, c := range r.Layers {
		out[c.ID] = c.State
	}
	return out
}

// As root, here: nothing is unknown, and nothing stays.
func TestDiagnoseAsRoot(t *testing.T) {
	testenv.Root(t)
	d := Diagnose(noHelper)
	if left := doctorDebris(); len(left) > 0 {
		t.Errorf("doctor left behind %q", left)
	}
	var js bytes.Buffer
	if err := d.WriteJSON(&js); err != nil {
		t.Fatal(err)
	}
	r := decodeDiagnosis(t, js.Bytes())
	if r.states()["record.programs"] == cellMissing {
		testenv.Missing(t, "bpf", js.String())
	}
	for id, state := range r.states() {
		if state == cellUnknown {
			t.Errorf("%s is unknown to root", id)
		}
	}
}

// doctorDebris is what could be left behind outside of the process; TestMain looks at
// the process itself.
func doctorDebris() []string {
	var list []string
	for _, pattern := range []string{"/sys/fs/cgroup/" + probeName(), "/sys/fs/cgroup/*/" + probeName(), "/run/doctor*", "/tmp/doctor*"} {
		found, _ := filepath.Glob(pattern)
		list = append(list, found...)
	}
	return list
}

// What a killed doctor left is removed by the next, and what a live one made is not.
func TestDoctorRemovesProbes(t *testing.T) {
	testenv.Root(t)
	x := &examination{root: true}
	var err error
	if x.birth.layout, err = cgroup.Detect(); err != nil || x.birth.layout.Unified == "" {
		testenv.Missing(t, "cgroup", "no cgroup v2 hierarchy")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	must(t, cmd.Run())
	dead := filepath.Join(x.birth.layout.Unified, probePrefix+itoa(cmd.Process.Pid))
	live := filepath.Join(x.birth.layout.Unified, probeName())
	for _, dir := range []string{dead, live} {
		must(t, os.Mkdir(dir, 0o755), os.Mkdir(filepath.Join(dir, "probe.run"), 0o755))
		t.Cleanup(func() { _ = removeProbe(dir) })
	}
	if _, err := x.leftBehind(); err != nil {
		t.Error(err)
	}
	if exists(dead) || !exists(live) {
		t.Errorf("that of the dead is there: %v, that of the living: %v", exists(dead), exists(live))
	}
	must(t, removeProbe(live))
}

// TestDoctorProcess is not a test: other tests start it as another user.
func TestDoctorProcess(t *testing.T) {
	if os.Getenv("AGENTGUARD_TEST_DOCTOR") == "" {
		return
	}
	if err := Diagnose(noHelper).WriteJSON(os.Stdout); err != nil {
		t.Fatal(err)
	}
	os.Exit(0)
}

// elsewhere diagnoses in a process of its own.
func elsewhere(t *testing.T, attr *syscall.SysProcAttr, env ...string) report {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestDoctorProcess$")
	cmd.Env = append([]string{"AGENTGUARD_TEST_DOCTOR=1"}, env...)
	cmd.Dir, cmd.SysProcAttr, cmd.Stderr = "/", attr, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return decodeDiagnosis(t, out)
}

func TestDiagnoseAsUser(t *testing.T) {
	testenv.Root(t)
	r := elsewhere(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}, "HOME="+t.TempDir())
	s := r.states()
	caller := cellMissing
	if r.Modes[1].Available {
		caller = cellThin
	}
	for id, want := range map[string]string{"caller.privileges": caller, "files.mount-view": cellUnknown, "record.programs": cellUnknown} {
		if s[id] != want {
			t.Errorf("%s is %s, want %s", id, s[id], want)
		}
	}
	if r.UID != 65534 {
		t.Errorf("uid %d", r.UID)
	}
}

// The three ways stand side by side, as root and as an ordinary user, and one of them is what
// exec takes. What a mode lacks is what a run in it says that it lacks.
func TestDiagnoseModes(t *testing.T) {
	testenv.Root(t)
	user := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	for name, attr := range map[string]*syscall.SysProcAttr{"root": nil, "user": user} {
		modes := elsewhere(t, attr, "HOME="+t.TempDir()).Modes
		if len(modes) != 3 || modes[0].Mode != ModeRoot || modes[1].Mode != ModeUserNS || modes[2].Mode != ModeLandlock {
			t.Fatalf("%s: %+v", name, modes)
		}
		if modes[0].Available != (name == "root") || modes[0].Chosen != (name == "root") {
			t.Errorf("%s: %+v", name, modes[0])
		}
		chosen := 0
		for _, m := range modes {
			if m.Chosen {
				chosen++
			}
			if m.Why == "" || m.Record == "" || len(m.Layers) != len(modeResources) || !m.Available && m.Remedy == "" {
				t.Errorf("%s: %+v", name, m)
			}
		}
		if !modes[2].Available {
			testenv.Missing(t, "landlock", modes[2].Why)
		}
		if chosen != 1 || len(modes[2].Lacks) < 8 || len(modes[1].Lacks) >= len(modes[2].Lacks) {
			t.Errorf("%s: %d chosen, lacking %v, %v", name, chosen, modes[1].Lacks, modes[2].Lacks)
		}
	}
}

// Root of a user namespace is no root: programs do not load, and it is said
// where the process is.
func TestDiagnoseInUserNamespace(t *testing.T) {
	testenv.Root(t)
	r := elsewhere(t, &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWUTS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
	})
	s := r.states()
	for id, want := range map[string]string{"caller.privileges": cellThin, "processes.birth": cellMissing, "record.programs": cellMissing} {
		if s[id] != want {
			t.Errorf("%s is %s, want %s", id, s[id], want)
		}
	}
	if !r.Inside.Envelope.Found || !r.Inside.Container.Found {
		t.Errorf("inside %+v", r.Inside)
	}
}

// The domains of others are counted, and none of doctor's stays.
func TestLandlockDomains(t *testing.T) {
	host := Host{}
	host.probeLandlock()
	if host.Info.Landlock == 0 {
		testenv.Missing(t, "landlock", host.Info.LandlockError)
	}
	before, err := landlockDomains()
	if err != nil {
		t.Fatal(err)
	}
	n := -1
	err = lostthread.Run(func() (err error) {
		if err := noNewPrivs(); err != nil {
			return err
		}
		rules, err := landlock.NewRuleset(1, nil)
		if err != nil {
			return err
		}
		defer rules.Close()
		for range 3 {
			if _, _, errno := unix.Syscall(landlock.SysRestrictSelf, rules.Fd(), 0, 0); errno != 0 {
				return errno
			}
		}
		n, err = countDomains()
		return err
	})
	if err != nil || n != before+3 {
		t.Errorf("%d domains, %v; want %d", n, err, before+3)
	}
	if again, err := landlockDomains(); err != nil || again != before {
		t.Errorf("the process itself is in %d domains now, %v; want %d", again, err, before)
	}
}

// Every row is documented, and nothing else is.
func TestDoctorDocs(t *testing.T) {
	doc, err := os.ReadFile("../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented, reported []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+\\.[A-Za-z-]+)` \\|").FindAllSubmatch(doc, -1) {
		documented = append(documented, string(m[1]))
	}
	for _, c := range Diagnose(noHelper).report.Layers {
		reported = append(reported, c.ID)
	}
	if d := cmp.Diff(documented, reported); d != "" {
		t.Errorf("docs/doctor.md (-) and doctor (+), in order: %s", d)
	}
}

func noHelper() error { return errors.New("there is none") }
