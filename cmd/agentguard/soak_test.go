package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// soakRuns is how many runs follow each other; CI asks for 1000.
func soakRuns(t *testing.T) int {
	if testing.Short() { // the race detector watches the test, not the program
		return 20
	}
	n, err := strconv.Atoi(cmpOr(os.Getenv("AGENTGUARD_TEST_RUNS"), "200"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// census is what a machine holds besides files: BPF objects by kind.
type census struct{ programs, maps, links int }

// takeCensus counts the BPF objects of the machine (BPF_*_GET_NEXT_ID, bpf(2)).
func takeCensus() census { return census{count(11), count(12), count(31)} }

func count(next uintptr) (n int) {
	var attr struct{ start, next, flags uint32 }
	for {
		_, _, errno := unix.Syscall(unix.SYS_BPF, next, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		if errno != 0 {
			return n
		}
		n++
		attr.start = attr.next
	}
}

// grown reports whether the machine has more BPF objects than before. It asks
// for a while: the kernel frees them after a grace period of its own. Fewer are
// none of ours: somebody else's program has ended.
func grown(before census) (now census, more bool) {
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		now = takeCensus()
		more = now.programs > before.programs || now.maps > before.maps || now.links > before.links
		if !more || time.Now().After(deadline) {
			return now, more
		}
	}
}

// Many runs, one after the other and at once, leave nothing behind and see
// nothing of each other.
func TestManyRuns(t *testing.T) {
	testenv.Root(t)
	state := t.TempDir()
	warmUp(t, state, 8)
	before, objects, descriptors := held(), takeCensus(), machineDescriptors()

	for i := range soakRuns(t) {
		oneRun(t, state, fmt.Sprintf("token-9-%d-end", i))
	}
	inParallel(t, state, 8, 25)

	for _, left := range leftovers(0, before) {
		t.Error("left behind: " + left)
	}
	if now, more := grown(objects); more {
		t.Errorf("BPF objects %+v, were %+v", now, objects)
	}
	if now := machineDescriptors(); now > descriptors {
		t.Errorf("%d descriptors, were %d", now, descriptors)
	}
}

// warmUp holds as many runs at once as the test will: the slots, the user ids
// and their namespaces are kept afterwards on purpose.
func warmUp(t *testing.T, state string, lanes int) {
	t.Helper()
	var wait sync.WaitGroup
	for range lanes {
		wait.Go(func() {
			cmd := exec.Command(agentguard(), "exec", "--state", filepath.Join(state, "warm"), "--", "sleep", "2")
			cmd.Dir = "/usr"
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wait.Wait()
}

// oneRun writes its token, sees no other, and finds it alone in its record.
func oneRun(t *testing.T, state, token string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(agentguard(), "exec", "--json", "fd:3", "--state", state, "--", "/bin/sh", "-c",
		"echo "+token+" | tee /tmp/mine /dev/shm/mine; ls /tmp /dev/shm $HOME | grep -c . ; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'token-[0-9-]*end' | sort -u")
	cmd.Dir = "/usr"
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	r, w, err := os.Pipe()
	if err != nil {
		t.Error(err)
		return
	}
	defer r.Close()
	cmd.ExtraFiles = []*os.File{w}
	err = errors.Join(cmd.Run(), w.Close())
	want := token + "\n5\n" + token + "\n" // three directories, a file in two; its own command line
	if err != nil && stdout.Len() == 0 || stdout.String() != want || stderr.Len() != 0 {
		t.Errorf("%s: %v, output %q, %q", token, err, stdout.String(), stderr.String())
	}
}

// inParallel starts lanes that each make runs one after the other.
func inParallel(t *testing.T, state string, lanes, runs int) {
	t.Helper()
	var wait sync.WaitGroup
	for lane := range lanes {
		wait.Go(func() {
			for i := range runs {
				oneRun(t, state, fmt.Sprintf("token-%d-%d-end", lane, i))
			}
		})
	}
	wait.Wait()
	checkRecords(t, state)
}

// checkRecords reads back every record's stdout: one token each, its own.
func checkRecords(t *testing.T, state string) {
	t.Helper()
	files, err := filepath.Glob(state + "/runs/*/stdout")
	if err != nil || len(files) == 0 {
		t.Fatal("no records", err)
	}
	out, err := exec.Command(agentguard(), "trace", "verify", "--all", "--state", state).CombinedOutput()
	if n := bytes.Count(out, []byte("complete ")); err != nil || n != len(files) {
		t.Errorf("%d of %d records verified: %v\n%.2000s", n, len(files), err, out)
	}
	seen := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		token, _, _ := bytes.Cut(b, []byte("\n"))
		if other, ok := seen[string(token)]; ok {
			t.Errorf("%s is in %s and in %s", token, f, other)
		}
		seen[string(token)] = f
		plan, err := os.ReadFile(filepath.Join(filepath.Dir(f), "plan.json"))
		if err != nil || !bytes.Contains(plan, token) {
			t.Errorf("%s: the plan is not that of %s: %v", f, token, err)
		}
	}
}

// machineDescriptors counts the descriptors of this process and of agentguard
// programs that are still there.
func machineDescriptors() int {
	n := 0
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range exes {
		if target, _ := os.Readlink(exe); target == agentguard() || filepath.Dir(exe) == fmt.Sprintf("/proc/%d", os.Getpid()) {
			fds, _ := filepath.Glob(filepath.Dir(exe) + "/fd/*")
			n += len(fds)
		}
	}
	return n
}
