package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/seal"
)

// kills is how many supervisors are killed; AGENTGUARD_TEST_KILLS changes it.
func kills(t *testing.T) int {
	n := 200
	if testing.Short() {
		n = 8
	}
	if v := os.Getenv("AGENTGUARD_TEST_KILLS"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// A supervisor that is killed at any moment leaves a dead run and a record
// whose beginning, up to the last checkpoint, is proven; and the host can seal
// what is there, which is then never complete.
func TestKilledSupervisor(t *testing.T) {
	testenv.Root(t)
	before := held()
	const lanes = 6
	tally := map[string]int{}
	var mu sync.Mutex
	var wait sync.WaitGroup
	for lane := range lanes {
		state := filepath.Join(t.TempDir(), "state")
		r := rand.New(rand.NewPCG(uint64(lane), 9))
		wait.Go(func() {
			for i := lane; i < kills(t); i += lanes {
				k := &killed{t: t, state: state, mark: fmt.Sprintf("3153600%d.%d", i, os.Getpid())}
				what := k.run(randomMoment(r))
				mu.Lock()
				tally[what]++
				mu.Unlock()
			}
			if out, err := exec.Command(agentguard(), "exec", "-q", "--state", state, "--", "true").CombinedOutput(); err != nil { // sweeps
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wait.Wait()
	t.Log(tally)
	if tally["proven"] == 0 {
		t.Error("no run lived for a checkpoint")
	}
	for _, left := range added("cgroup", before.cgroups, held().cgroups) {
		t.Error("left behind: " + left)
	}
}

// moment is when a supervisor is killed: while it begins, or so long after its
// run has a directory, when nothing of the record may be proven yet, or all up to
// the first checkpoint or two.
type moment struct {
	begun bool
	after time.Duration
}

func randomMoment(r *rand.Rand) moment {
	longest := []time.Duration{40, 60, 400, 2600}
	i := r.IntN(len(longest))
	return moment{i > 0, time.Duration(r.Int64N(int64(longest[i] * time.Millisecond)))}
}

// killed is one run whose supervisor is killed.
type killed struct {
	t     *testing.T
	state string
	mark  string // in the command line of a process of the run
}

// run returns how far the record of the run came.
func (k *killed) run(when moment) string {
	before := k.dirs()
	cmd := exec.Command(agentguard(), "exec", "-q", "--state", k.state, "--", "/bin/sh", "-c",
		"sleep "+k.mark+" & while :; do /bin/true; sleep 0.01; done")
	cmd.Dir = "/usr"
	if err := cmd.Start(); err != nil {
		k.t.Error(err)
		return "error"
	}
	for deadline := time.Now().Add(patience); when.begun && len(k.dirs()) == len(before) && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(when.after)
	if err := cmd.Process.Signal(unix.SIGKILL); err != nil {
		k.t.Error(err)
	}
	_ = cmd.Wait() // killed
	k.dead()
	// Not the last by name: a directory that is being made has another.
	dirs := slices.DeleteFunc(k.dirs(), func(d string) bool { return slices.Contains(before, d) })
	if len(dirs) == 0 {
		return "no run"
	}
	dir := dirs[0]
	if _, err := os.Stat(dir + "/trace.jsonl"); err != nil {
		return "no record"
	}
	return k.check(dir)
}

func (k *killed) dirs() []string {
	dirs, _ := filepath.Glob(k.state + "/runs/*")
	return dirs
}

// dead waits until the run's processes are gone.
func (k *killed) dead() {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		alive := ""
		for _, l := range lines {
			if b, _ := os.ReadFile(l); bytes.Contains(b, []byte(k.mark)) {
				alive = l
			}
		}
		if alive == "" {
			return
		}
		if time.Now().After(deadline) {
			k.t.Errorf("%s outlived its supervisor", alive)
			return
		}
	}
}

func (k *killed) verify(what string, want trace.Judgement) *seal.Report {
	k.t.Helper()
	r := &seal.Report{}
	cmd := exec.Command(agentguard(), "trace", "verify", "--json", "--state", k.state, what)
	out, _ := cmd.Output() // the status is that of the verdict
	if err := json.Unmarshal(out, r); err != nil || r.Verdict != want || cmd.ProcessState.ExitCode() != int(verdictStatus[want]) {
		k.t.Errorf("%s: verdict %s (status %d), want %s: %v %v", what, r.Verdict, cmd.ProcessState.ExitCode(), want, r.Faults, err)
	}
	return r
}

// recover waits for what the supervisor had begun to start: until its execve it holds
// the supervisor's descriptors, and with them the lock of the run.
func (k *killed) recover(id string) (out []byte, err error) {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		out, err = exec.Command(agentguard(), "runs", "recover", "--state", k.state, id).CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte("the run is live")) || time.Now().After(deadline) {
			return out, err
		}
	}
}

// check verifies what is there, changes a byte of what was proven, and recovers.
func (k *killed) check(dir string) string {
	id := filepath.Base(dir)
	r := k.verify(id, trace.Unsealed)
	record, err := os.ReadFile(dir + "/trace.jsonl")
	if err != nil {
		k.t.Error(err)
		return "error"
	}
	if r.Verified > 0 {
		if got := bytes.Count(record[:r.Bytes], []byte("\n")); int64(got) != r.Verified {
			k.t.Errorf("%s: %d records in the first %d bytes, verified %d", id, got, r.Bytes, r.Verified)
		}
		bad := bytes.Clone(record)
		bad[rand.Int64N(r.Bytes)] ^= 1
		k.write(dir, bad)
		k.verify(id, trace.Altered)
		if err := exec.Command(agentguard(), "runs", "recover", "--state", k.state, id).Run(); err == nil {
			k.t.Errorf("%s was recovered although it was altered", id)
		}
		k.write(dir, record)
	}
	if out, err := k.recover(id); err != nil {
		k.t.Errorf("recover %s: %v: %s", id, err, out)
	}
	after := k.verify(id, trace.Incomplete)
	if after.Statement == nil {
		k.t.Errorf("%s: not recovered", id)
		return "error"
	}
	if after.State != seal.Recovered || after.Statement.Predicate.Verified != r.Verified {
		k.t.Errorf("%s: %s, %d verified, were %d", id, after.State, after.Statement.Predicate.Verified, r.Verified)
	}
	now, err := os.ReadFile(dir + "/trace.jsonl")
	if err != nil || !bytes.HasPrefix(now, record) {
		k.t.Errorf("%s: what was there is not the beginning of what is: %v", id, err)
	}
	if r.Verified > 0 {
		return "proven"
	}
	return "begun"
}

func (k *killed) write(dir string, record []byte) {
	if err := os.WriteFile(dir+"/trace.jsonl", record, 0o600); err != nil {
		k.t.Error(err)
	}
}

// Who was moved to a cgroup that was killed once has runs as well: some kernels (6.18) kill what is born from
// there into another cgroup.
func TestCallerInKilledCgroup(t *testing.T) {
	testenv.Root(t)
	layout, err := cgroup.Detect()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(layout.Unified, testenv.CgroupName())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(time.Minute); unix.Rmdir(dir) != nil; time.Sleep(time.Millisecond) { // busy until its last task has let go of it
			if time.Now().After(end) {
				t.Fatalf("%s is not removed", dir)
			}
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, dir,
		agentguard(), "exec", "--state", filepath.Join(t.TempDir(), "state"), "--", "echo", "ran")
	cmd.Dir = "/usr"
	if out, err := cmd.Output(); err != nil || string(out) != "ran\n" {
		t.Errorf("%q, %v", out, err)
	}
}

// A disk that fills up at any step of a run leaves a record that says so, or none: nothing looks altered, nothing
// unsealed is listed as complete, and when there is room again the host seals what is there.
func TestDiskFullAtEachStep(t *testing.T) {
	testenv.Root(t)
	const script = `
cd "$DIR"; mkdir m ws; mount -t tmpfs -o size=8m none m
trap 'cd /; umount "$DIR/m"' EXIT
"$BIN" exec -q --state m/st -w ws -- true
for free in $STEPS; do # pages
	used=$(df -k --output=used m | tail -1)
	head -c $(((2048 - used / 4 - free) * 4096)) /dev/zero >m/ballast
	"$BIN" exec -q --state m/st -w ws -- sh -c 'i=0; while [ $i -lt 30 ]; do /bin/true; i=$((i+1)); done; echo hi' >/dev/null 2>&1 || true
	rm m/ballast
	status=0; "$BIN" trace verify --all --state m/st >verified 2>&1 || status=$?
	[ $status -le 2 ] || { echo "$free pages, status $status:"; cat verified; }
	"$BIN" runs ls -n 0 --state m/st >listed
	for id in $(sed -n 's/^unsealed *\([^ ]*\) .*/\1/p' verified); do
		grep "$id .* complete " listed && echo "$free pages: that one is unsealed"
	done
done
[ "$(grep -c . listed)" -gt 3 ] || cat listed
"$BIN" runs recover --state m/st >/dev/null
status=0; "$BIN" trace verify --all --state m/st >verified 2>&1 || status=$?
[ $status -le 1 ] || { echo "recovered, status $status:"; cat verified; }
true`
	steps := "2 3 5 8 13 18 23 26 27 28 29 30 31 32 33"
	if testing.Short() { // the emulated machines, where each takes seconds
		steps = "3 13 27 29 30"
	}
	if out := inLower(t, script, "STEPS="+steps); out != "" {
		t.Error(out)
	}
}
