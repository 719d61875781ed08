package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// children are the processes that a process has started.
func children(pid int) (list []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, t := range tasks {
		b, _ := os.ReadFile(t)
		for _, word := range strings.Fields(string(b)) {
			n, _ := strconv.Atoi(word)
			list = append(list, n)
		}
	}
	return list
}

// reserveOf is the process that waits for the next caller of a helper, and the name of the
// reserve that it holds; "" before it has one.
func reserveOf(helper int) (spare int, name string) {
	for _, spare := range children(helper) {
		for _, first := range children(spare) {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", first))
			_, rest, _ := strings.Cut(string(b), "/reserve-")
			name, _, ok := strings.Cut(rest, ".run\n")
			mark, _ := os.ReadFile(lockFile("reserve-" + name))
			if ok && string(mark) == "in reserve\n" {
				return spare, "reserve-" + name
			}
		}
	}
	return 0, ""
}

// reserve waits for a reserve that is not the one before.
func (s *service) reserve(before string) (spare int, name string) {
	s.t.Helper()
	s.until("there is a reserve", func() bool {
		spare, name = reserveOf(s.cmd.Process.Pid)
		return name != "" && name != before
	})
	return spare, name
}

// watch returns how to wait for the end of a process.
func (s *service) watch(pid int) (ended func()) {
	s.t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = unix.Close(fd) })
	return func() {
		s.t.Helper()
		s.until("the process in reserve has ended", func() bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
			return n == 1 && err == nil
		})
	}
}

func reserveLeft(name string) bool {
	for _, leaf := range leaves() {
		if filepath.Base(leaf) == name+".run" && exists(leaf) {
			return true
		}
	}
	return exists(lockFile(name))
}

// A command that was born before its caller was known has what is the caller's.
func TestHelperReserveInherits(t *testing.T) {
	s := serveUsers(t)
	_, name := s.reserve("")
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // 20 - nice
	if err != nil {
		t.Fatal(err)
	}
	const script = `echo 400 >/proc/self/oom_score_adj; ulimit -s 4096; exec nice -n 7 taskset -c "$1" "$0" exec -q -- \
		sh -c 'nice; nproc; ulimit -s; cat /proc/self/oom_score_adj'`
	out, errs, status := s.finish(s.as(ann, "/bin/sh", "-c", script, agentguard(), strconv.Itoa(someCPU(t))))
	if want := fmt.Sprintf("%d\n1\n4096\n400\n", min(20-raw+7, 19)); out != want || status != 0 {
		t.Errorf("%d %q %q", status, out, errs)
	}
	if reserveLeft(name) {
		t.Error("the run was not that of the reserve, or has left it")
	}
}

// someCPU is one that this process may use.
func someCPU(t *testing.T) int {
	t.Helper()
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		t.Fatal(err)
	}
	n := 0
	for !cpus.IsSet(n) {
		n++
	}
	return n
}

// Each process of the helper serves one caller, however many come at once.
func TestHelperReserveIsNotShared(t *testing.T) {
	s := serveUsers(t)
	_, first := s.reserve("")
	old := tracesOf(ann, bob)
	var wait sync.WaitGroup
	for i := range 12 {
		uid := []int{ann, bob}[i%2]
		wait.Go(func() {
			out, errs, status := s.guard(uid, "exec", "-q", "--mode", "ro", "--env", "WHO="+strconv.Itoa(i), "--", "sh", "-c", `echo $WHO $(id -u)`)
			if want := fmt.Sprintf("%d %d\n", i, uid); out != want || status != 0 {
				t.Errorf("%d %q %q", status, out, errs)
			}
		})
	}
	wait.Wait()
	s.reserve(first)
	seen := map[string]string{}
	for _, name := range tracesOf(ann, bob) {
		if slices.Contains(old, name) {
			continue
		}
		supervisor := supervisorOf(t, name)
		if other, ok := seen[supervisor]; ok {
			t.Errorf("%s and %s had one supervisor", name, other)
		}
		seen[supervisor] = name
	}
	if len(seen) != 12 {
		t.Errorf("%d records", len(seen))
	}
}

// tracesOf are the records of users.
func tracesOf(uids ...int) (list []string) {
	for _, uid := range uids {
		names, _ := filepath.Glob(fmt.Sprintf("/var/lib/agentguard/users/%d/runs/*/trace.jsonl", uid))
		list = append(list, names...)
	}
	return list
}

// supervisorOf is the process that PID 1 was born from, by the record.
func supervisorOf(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, `"kind":"fork"`) && strings.Contains(line, `"child_ns_pid":1`) {
			_, rest, _ := strings.Cut(line, `"proc":"`)
			id, _, _ := strings.Cut(rest, `"`)
			return id
		}
	}
	t.Fatalf("%s: nobody bore PID 1", name)
	return ""
}

// A spare process that is killed costs the next caller nothing but its reserve, and what
// it held is swept by a run.
func TestHelperReserveKilled(t *testing.T) {
	s := serveUsers(t)
	spare, name := s.reserve("")
	ended := s.watch(spare)
	if err := unix.Kill(spare, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ended()
	s.works()
	s.reserve(name)
	s.works()
	s.until("the reserve is swept", func() bool { return !reserveLeft(name) })
}

// When the helper is killed, the process in reserve ends with all that it holds.
func TestHelperKilledWithReserve(t *testing.T) {
	testenv.Root(t)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(agentguard(), "helper", "--socket", filepath.Join(dir, "s"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &service{t: t, cmd: cmd}
	spare, name := s.reserve("")
	ended := s.watch(spare)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	ended()
	if reserveLeft(name) {
		t.Errorf("%s is left", name)
	}
}
