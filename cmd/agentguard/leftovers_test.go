package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// holdings is what stays on a machine when runs do not clean up.
type holdings struct {
	cgroups []string // of runs whose supervisor is dead
	mounts  []string // of the stage
	locks   []string // of dead supervisors
}

func held() holdings {
	return holdings{cgroups: strayCgroups(), mounts: mounts(), locks: strayLocks()}
}

// leftovers lists what runs have left behind since before. It looks again for
// a while: other programs on the machine run agentguard too, and the kernel
// takes its time to let go.
func leftovers(unsealed int, before holdings) []string {
	deadline := time.Now().Add(2 * time.Minute)
	for {
		now := held()
		left := slices.Concat(strayRuns(unsealed), added("cgroup", before.cgroups, now.cgroups),
			added("mount", before.mounts, now.mounts), added("lock", before.locks, now.locks))
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func added(what string, before, now []string) []string {
	var list []string
	for _, s := range now {
		if !slices.Contains(before, s) {
			list = append(list, what+" "+s)
		}
	}
	return list
}

// strayCgroups are the leaves of runs whose supervisor is dead, with the
// processes that are still in them.
func strayCgroups() []string {
	var stray []string
	for _, leaf := range leaves() {
		if id := strings.TrimSuffix(filepath.Base(leaf), ".run"); !supervised(id) && exists(leaf) {
			procs, _ := os.ReadFile(filepath.Join(leaf, "cgroup.procs"))
			stray = append(stray, fmt.Sprintf("%s with processes %q", leaf, procs))
		}
	}
	return stray
}

// leaves are the cgroups of all runs, in all hierarchies.
func leaves() []string {
	var list []string
	for _, pattern := range []string{"/sys/fs/cgroup/agentguard*/*-*", "/sys/fs/cgroup/*/agentguard*/*-*"} {
		found, _ := filepath.Glob(pattern)
		list = append(list, found...)
	}
	return list
}

func lockFile(id string) string { return filepath.Join("/run/agentguard/live", id) }

// supervised reports whether somebody holds the lock of a run. It asks
// proc_locks(5): to try the lock could make the run that is about to take it fail.
func supervised(id string) bool {
	var st unix.Stat_t
	if unix.Stat(lockFile(id), &st) != nil {
		return false
	}
	locks, _ := os.ReadFile("/proc/locks")
	return strings.Contains(string(locks), fmt.Sprintf(" %02x:%02x:%d ", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino))
}

func strayLocks() []string {
	var stray []string
	locks, _ := filepath.Glob(lockFile("*"))
	for _, lock := range locks {
		if !supervised(filepath.Base(lock)) && exists(lock) {
			stray = append(stray, lock)
		}
	}
	return stray
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// strayRuns are run directories without the result of a run, unless there are
// just as many as allowed.
func strayRuns(allowed int) []string {
	var stray []string
	dirs, _ := filepath.Glob(stateDir + "/runs/*")
	for _, dir := range dirs {
		if !exists(filepath.Join(dir, "result.json")) {
			stray = append(stray, "run without a result: "+dir)
		}
	}
	if len(stray) == allowed {
		return nil
	}
	return append(stray, fmt.Sprintf("%d runs without a result, want %d", len(stray), allowed))
}

// mounts are the mounts of the stage, but for what agentguard keeps: user
// namespaces in /run/agentguard/userns, one for each of the greatest number of
// runs at once, and the BPF file system.
func mounts() []string {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	var list []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && !strings.HasPrefix(f[4], "/run/agentguard/") {
			list = append(list, f[4])
		}
	}
	return list
}
