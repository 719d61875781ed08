package testenv

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// scratch is a directory for what several tests use; [Main] removes it.
var scratch string

// Main runs the tests of a package for its TestMain and then looks for what
// they left: open descriptors, child processes (zombies too), mounts, and
// cgroups that are named by [CgroupName]. What the tests shared is taken away by after
// first. It returns the exit status: 1 when there is any of these.
func Main(m *testing.M, after ...func() error) int {
	sweepCgroups()
	defer func() { _ = os.RemoveAll(scratch) }()
	before := held()
	status := m.Run()
	for _, f := range after {
		if err := f(); err != nil {
			fmt.Fprintln(os.Stderr, "FAIL: after the tests:", err)
			status = max(status, 1)
		}
	}
	if status != 0 { // a test that failed may not have cleaned up
		return status
	}
	if left := leaks(before, 30*time.Second); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "FAIL: left behind by the tests:\n\t%s\n", strings.Join(left, "\n\t"))
		return 1
	}
	return 0
}

var cgroups atomic.Int64

// CgroupName returns the name of a new cgroup that a test may make in the root
// of any hierarchy. It holds the process's id: tests of two packages at a time
// do not take each other's for left behind.
func CgroupName() string { return cgroupPrefix() + strconv.FormatInt(cgroups.Add(1), 10) }

// sweepCgroups removes what test processes left that were killed, a timeout's
// for example: named as theirs, empty, and of a process that is gone.
func sweepCgroups() {
	for _, pattern := range []string{"/sys/fs/cgroup/agentguard-test-*", "/sys/fs/cgroup/*/agentguard-test-*"} {
		found, _ := filepath.Glob(pattern)
		for _, dir := range found {
			pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), "agentguard-test-"), "-")
			if _, err := os.Stat("/proc/" + pid); err == nil {
				continue
			}
			var all []string
			_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
				if err == nil && e.IsDir() {
					all = append(all, path)
				}
				return nil
			})
			for _, d := range slices.Backward(all) {
				_ = os.Remove(d) // refused where anything lives in it
			}
		}
	}
}

func cgroupPrefix() string { return fmt.Sprintf("agentguard-test-%d-", os.Getpid()) }

// leaks returns what is held now and not in before. It looks again for as long
// as patience: the kernel and other goroutines may be about to let go.
func leaks(before map[string]bool, patience time.Duration) []string {
	deadline := time.Now().Add(patience)
	for {
		var left []string
		for _, h := range slices.Sorted(maps.Keys(held())) {
			if !before[h] {
				left = append(left, h)
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// held lists what the process holds, one sentence each.
func held() map[string]bool {
	startPoller()
	all := map[string]bool{}
	for _, list := range [][]string{slices.Collect(maps.Keys(Descriptors())), children(), mounts(), testCgroups()} {
		for _, s := range list {
			all[s] = true
		}
	}
	return all
}

// startPoller makes the runtime open the descriptors of its network poller,
// which it keeps.
func startPoller() {
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
}

// Descriptors are those of this process, each with what it leads to: "descriptor 3: pipe:[1234]".
func Descriptors() map[string]bool {
	open := map[string]bool{}
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		// The descriptor of the listing itself is closed again by now.
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			open["descriptor "+e.Name()+": "+to] = true
		}
	}
	return open
}

// Since counts the descriptors that were not there before. Those of earlier tests
// may go away meanwhile, by the garbage collector.
func Since(before map[string]bool) int { return lacking(before, Descriptors()) }

// Gone counts the descriptors that were there before and are no more.
func Gone(before map[string]bool) int { return lacking(Descriptors(), before) }

// lacking counts what of all is not in have.
func lacking(have, all map[string]bool) int {
	n := 0
	for d := range all {
		if !have[d] {
			n++
		}
	}
	return n
}

func children() []string {
	var list []string
	parent := []byte(strconv.Itoa(os.Getpid()))
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		// "PID (COMM) STATE PPID ...": the name may hold anything, parentheses too.
		if fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]); len(fields) > 1 && bytes.Equal(fields[1], parent) {
			list = append(list, "child process "+string(b[:bytes.LastIndexByte(b, ')')+1]))
		}
	}
	return list
}

func mounts() []string {
	// What runs keep on purpose, so that the next is faster: pinned programs, user
	// namespaces of idmapped mounts. They are as many as there were runs at once.
	const keptBelow = "/run/agentguard/"
	var list []string
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && !strings.HasPrefix(f[4], keptBelow) {
			list = append(list, "mount "+f[0]+" at "+f[4])
		}
	}
	return list
}

// testCgroups looks where hierarchies are usually mounted.
func testCgroups() []string {
	var list []string
	for _, dir := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		found, _ := filepath.Glob(dir + cgroupPrefix() + "*")
		for _, path := range found {
			list = append(list, "cgroup "+path)
		}
	}
	return list
}
