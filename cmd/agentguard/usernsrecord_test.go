package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/trace"
)

// events reads the whole record of a run.
func (l *loner) events(r *runs.Result) []trace.Event {
	l.t.Helper()
	return l.eventsOf(r, trace.Degraded)
}

// eventsOf is events of a record with this verdict.
func (l *loner) eventsOf(r *runs.Result, verdict trace.Judgement) []trace.Event {
	l.t.Helper()
	f, err := os.Open(filepath.Join(r.Record.Path, runs.TraceFile))
	if err != nil {
		l.t.Fatal(err)
	}
	defer f.Close()
	var all []trace.Event
	in := trace.NewReader(f)
	if err := in.Each(func(e *trace.Event) error {
		keep := *e
		keep.Path, keep.PathGiven = bytes.Clone(e.Path), bytes.Clone(e.PathGiven)
		keep.Argv = nil
		for _, a := range e.Argv {
			keep.Argv = append(keep.Argv, bytes.Clone(a))
		}
		all = append(all, keep)
		return nil
	}); err != nil {
		l.t.Fatal(err)
	}
	if j, why := in.Report().Judge(); string(j) != r.Record.Verdict || j != verdict {
		l.t.Errorf("the record is %s: %q; the result says %s", j, why, r.Record.Verdict)
	}
	return all
}

func (l *loner) script(name, text string) string {
	l.t.Helper()
	file := filepath.Join(l.work, name)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		l.t.Fatal(err)
	}
	return file
}

// What a command does is told by its filter: programs with their images, ends, refused
// calls, where it connects to; in the order of every record, and nothing is made up.
func TestUserNSRecord(t *testing.T) {
	l := alone(t)
	l.script("try.py", `import os, socket
open("f", "w")
for what in lambda: os.chmod("f", 0o4755), lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW), lambda: socket.create_connection(("192.0.2.1", 443)):
    try: what()
    except OSError as e: print(e.errno)
`)
	r := l.result("--", "sh", "-c", `cd /usr && bin/env A=1 true; cd - >/dev/null; /nowhere/prog; python3 try.py; (exit 4); exit 3`)
	all := l.events(r)
	if r.Record.Tier != "notify" || all[0].Kind != trace.KindStart || all[len(all)-1].Kind != trace.KindSummary || len(all[0].Degraded) == 0 {
		t.Fatalf("tier %s, %d events, from %s to %s", r.Record.Tier, len(all), all[0].Kind, all[len(all)-1].Kind)
	}
	var saw []string
	for i := range all {
		e := &all[i]
		if e.Seq != uint64(i+1) {
			t.Errorf("event %d has number %d", i+1, e.Seq)
		}
		if e.Denied() {
			saw = append(saw, trace.Sentence(e)+" "+string(e.Certainty))
		}
		if e.Kind == trace.KindExec && (e.PathSource != trace.PathKernel || e.Ino == 0 || !digested(all, e.Ino)) {
			t.Errorf("exec of %s: %s, inode %d, hashed %v", e.Path, e.PathSource, e.Ino, digested(all, e.Ino))
		}
	}
	want := []string{
		"denied exec /nowhere/prog (ENOENT; probably mount, filesystem.read_only_mounts): add --ro /nowhere/prog inferred",
		"denied chmod " + l.work + "/f (EPERM; seccomp, process.seccomp_allow) certain",
		"denied socket packet (EPERM; seccomp, process.seccomp_allow) certain",
		"denied connect 192.0.2.1:443 (ENETUNREACH; probably network, network.egress): add --allow 192.0.2.1:443 inferred",
	}
	if !slices.Equal(saw, want) {
		t.Errorf("denied:\n%s\nwant\n%s", strings.Join(saw, "\n"), strings.Join(want, "\n"))
	}
	sum := &all[len(all)-1]
	for _, c := range sum.Counts {
		if strings.HasPrefix(c.Name, "bytes.") || c.Name == "syscalls" || strings.HasPrefix(c.Name, "packets.") {
			t.Errorf("%s is counted: %d", c.Name, c.N)
		}
	}
	codes := map[int32]int{}
	for i := range all {
		if all[i].Kind == trace.KindExit {
			codes[all[i].ExitCode]++
		}
	}
	if codes[3] != 1 || codes[4] != 1 || codes[127] != 1 {
		t.Errorf("ends %v", codes)
	}
}

// digested reports whether the record has a digest of an image.
func digested(all []trace.Event, ino uint64) bool {
	return slices.ContainsFunc(all, func(e trace.Event) bool { return e.Ino == ino && e.SHA256 != "" })
}

// The canary's refusals are the launcher's, and every call of a storm is told.
func TestUserNSRecordExact(t *testing.T) {
	l := alone(t)
	if r := l.result("--mode", "ro", "--", "true"); r.Denials.Count != 0 {
		t.Errorf("refused to true: %+v", r.Denials)
	}
	const n = 300
	r := l.result("--mode", "ro", "--", "sh", "-c", fmt.Sprintf(`i=0; while [ $i -lt %d ]; do /bin/true $i; i=$((i+1)); done`, n))
	got, ends := 0, 0
	for _, e := range l.events(r) {
		if e.Kind == trace.KindExec && len(e.Argv) == 2 && string(e.Argv[0]) == "/bin/true" {
			got++
		}
		if e.Kind == trace.KindExit && e.Phase == trace.PhaseCommand {
			ends++
		}
	}
	if got != n || ends != n+1 {
		t.Errorf("%d programs, %d ends of %d", got, ends, n)
	}
}

// What the mode cannot tell is refused where a policy asks for it by name.
func TestUserNSRecordGaps(t *testing.T) {
	l := alone(t)
	for _, flag := range []string{"--trace=changes", "--trace=all"} {
		_, errs, status := l.guard("exec", "--mode", "ro", flag, "--", "true")
		if status != 125 || !strings.Contains(errs, "trace.files") || !strings.Contains(errs, "--allow-gap trace.files") {
			t.Errorf("%s: %d %q", flag, status, errs)
		}
		r := l.result("--mode", "ro", flag, "--allow-gap", "trace.files", "--", "true")
		if r.Status != 0 || len(r.Gaps) != 1 {
			t.Errorf("%s: %d %+v", flag, r.Status, r.Gaps)
		}
	}
	for _, loss := range []string{"throttle", "kill", "record"} {
		if r := l.result("--mode", "ro", "--on-loss", loss, "--", "true"); r.Status != 0 || r.Record.Lost != 0 {
			t.Errorf("%s: %d %+v", loss, r.Status, r.Record)
		}
	}
}

// A supervisor that is killed neither hangs nor frees a command that it answers.
func TestUserNSRecorderKilled(t *testing.T) {
	l := alone(t)
	cmd := l.as(agentguard(), "exec", "-q", "--mode", "ro", "--", "sh", "-c", "while :; do /bin/true; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l.until("programs run", func() bool {
		return slices.ContainsFunc(l.processes(), func(p string) bool { return strings.HasSuffix(p, " true") })
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it ended by itself")
	}
	l.until("all of it is dead", func() bool { return len(l.processes()) == 0 })
}

// The command finds no listener, and gets none of its own.
func TestUserNSNoListener(t *testing.T) {
	l := alone(t)
	l.script("try.py", `import os, ctypes
print(sorted(os.listdir("/proc/self/fd"))[:4], any("seccomp" in os.readlink("/proc/self/fd/" + f) for f in ("0", "1", "2")))
libc = ctypes.CDLL(None, use_errno=True)
class prog(ctypes.Structure): _fields_ = [("n", ctypes.c_ushort), ("f", ctypes.c_char_p)]
ask = prog(1, bytes([6, 0, 0, 0, 0, 0, 0xc0, 0x7f]))
print(libc.syscall({"x86_64": 317, "aarch64": 277}[os.uname().machine], 1, 8, ctypes.byref(ask)), os.strerror(ctypes.get_errno()))
`)
	out, errs, status := l.guard("exec", "-q", "--mode", "ro", "--", "python3", "try.py")
	if status != 0 || out != "['0', '1', '2', '3'] False\n-1 Device or resource busy\n" {
		t.Errorf("%d %q %q", status, out, errs)
	}
}

// Processes that are too many to be followed to their ends are a loss: kill ends the run, and record says so.
func TestUserNSTooManyToFollow(t *testing.T) {
	l := alone(t)
	const many = `import os, subprocess
r, w = os.pipe()
all = [subprocess.Popen(["sh", "-c", "echo; exec sleep 600"], stdout=w) for i in range(200)]
with open(r, "rb") as ready:
    for p in all: ready.readline() # it has been executed
for p in all: p.kill()
for p in all: p.wait()
print("done")`
	run := func(how string) (string, string, int) {
		return l.finish(l.as(prlimit(t), "--nofile=300:300", agentguard(), "exec", "--on-loss", how, "--mode", "ro", "--", "/usr/bin/python3", "-c", many))
	}
	if out, errs, status := run("kill"); status != 137 || !strings.Contains(errs, "RLIMIT_NOFILE") {
		t.Errorf("%d %q %q", status, out, errs)
	}
	if out, errs, status := run("record"); status != 0 || out != "done\n" || !strings.Contains(errs, "incomplete") {
		t.Errorf("%d %q %q", status, out, errs)
	}
}
