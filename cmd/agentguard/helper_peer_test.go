package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/helper"
	"github.com/agentguard/agentguard/supervisor"
)

// Nobody gets at the runs of another user.
func TestHelperOtherUsersRuns(t *testing.T) {
	s := serveUsers(t)
	if _, errs, status := s.guard(bob, "exec", "-q", "-w", "/usr", "--mode", "ro", "--cow", "/etc/alternatives", "--", "echo", "secret"); status != 0 {
		t.Fatal(errs)
	}
	out, _, _ := s.guard(bob, "runs", "ls")
	id := strings.Fields(strings.SplitN(out, "\n", 3)[1])[0]
	for _, args := range [][]string{{"runs", "show", id}, {"trace", "show", id}, {"diff", id}, {"commit", id}, {"discard", id}, {"runs", "kill", id}, {"exec", "--continue", id, "--", "true"}} {
		if out, errs, status := s.guard(ann, args...); status == 0 || strings.Contains(out+errs, "secret") {
			t.Errorf("%v: %d %q %q", args, status, out, errs)
		}
	}
	// Past the client's own checks, too.
	for _, name := range []string{id, "../../424202/runs/" + id, "../" + id, ".", "..", "", "/"} {
		if out := s.attack("runs", "RUN="+name); out != "" {
			t.Errorf("run %q: %s", name, out)
		}
	}
}

// attackRuns asks for a run by name in every way there is.
func attackRuns() error {
	run := os.Getenv("RUN")
	for kind, texts := range map[helper.Kind][]string{helper.End: {run}, helper.Commit: {run, "1", "\xff\xff"}, helper.Discard: {run, "1", "\xff\xff"}} {
		text, err := answerTo(bytesOf(kind, [][]string{texts}))
		if err != nil || !strings.HasPrefix(text, string(helper.Failed)) {
			fmt.Printf("%c: %q %v\n", kind, text, err)
		}
	}
	return nil
}

// The helper acts for nobody who has given up rights or lives in namespaces of its own.
func TestHelperSandboxedPeer(t *testing.T) {
	s := serveUsers(t)
	_, errs, status := s.finish(s.as(ann, "setpriv", "--no-new-privs", agentguard(), "exec", "-q", "--", "true"))
	if status != supervisor.StatusFailed || !strings.Contains(errs, "no_new_privs") {
		t.Errorf("%d %q", status, errs)
	}
	for flags, want := range map[int]string{0: "user", unix.CLONE_NEWNS: "mount", unix.CLONE_NEWNET: "user", unix.CLONE_NEWPID: "user"} {
		if out := s.attack("world", "FLAGS="+strconv.Itoa(flags)); !strings.HasPrefix(out, string(helper.Failed)) || !strings.Contains(out, "another "+want+" namespace") {
			t.Errorf("flags %#x: %s", flags, out)
		}
	}
	chroot := s.as(ann, agentguard(), "exec", "-q", "--", "true")
	chroot.SysProcAttr.Chroot = "/"
	if _, errs, status = s.finish(chroot); status != 0 { // the same root is no other
		t.Errorf("%d %q", status, errs)
	}
}

// attackWorld asks from a user namespace of its own, and others.
func attackWorld() error {
	flags, err := strconv.Atoi(os.Getenv("FLAGS"))
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), attackVar+"=raw")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	me := []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: uintptr(flags) | unix.CLONE_NEWUSER, UidMappings: me, GidMappings: me}
	return cmd.Run()
}

// A hostile directory, environment and HOME change what the user gets, and nothing else.
func TestHelperHostileEnvironment(t *testing.T) {
	s := serveUsers(t)
	hostile := filepath.Join(s.home, "bin")
	if err := os.Mkdir(hostile, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"mount", "agentguard", "mke2fs", "mkfs.ext4", "sh"} {
		if err := os.WriteFile(filepath.Join(hostile, name), []byte("#!/usr/bin/touch "+filepath.Join(s.home, "ran")+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := s.as(ann, agentguard(), "exec", "-q", "--upper", "auto", "--", "/bin/true")
	cmd.Env = append(cmd.Env, "PATH="+hostile, "HOME=/root", "XDG_STATE_HOME=/etc", "SUDO_UID=0", "SUDO_GID=0", "LD_PRELOAD="+hostile+"/x.so",
		"GODEBUG=inittrace=1", "GOTRACEBACK=crash", "GOMAXPROCS=1", "TMPDIR="+hostile, "LISTEN_FDS=1", "AGENTGUARD_TEST_STAGE=/", "http_proxy=http://127.0.0.1:1")
	if _, errs, status := s.finish(cmd); status != 0 || strings.Contains(s.said.String(), "init internal") {
		t.Errorf("%d %q", status, errs)
	}
	if exists(filepath.Join(s.home, "ran")) {
		t.Error("a program of the caller's PATH was run by the helper")
	}
	for _, cwd := range []string{"relative", "", "/proc/self/cwd/..", "/root/../etc", "/no/such\nplace"} {
		q := request("true")
		q.cwd, q.asked = cwd, nil
		if text, err := s.ask(q); err != nil || !strings.HasPrefix(text, string(helper.Failed)) {
			t.Errorf("cwd %q: %q %v", cwd, text, err)
		}
	}
	gone := filepath.Join(s.home, "gone")
	if err := os.Mkdir(gone, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd = s.as(ann, "/bin/sh", "-c", `cd gone && rmdir "$PWD" && exec "$0" exec -q -- true`, agentguard())
	if err := os.Chown(gone, ann, ann); err != nil {
		t.Fatal(err)
	}
	if _, errs, status := s.finish(cmd); status != supervisor.StatusFailed || !strings.Contains(errs, "directory is gone") {
		t.Errorf("%d %q", status, errs)
	}
}

// ask sends a request as ann, past the client.
func (s *service) ask(q *execRequest) (string, error) {
	path := filepath.Join(s.home, "request")
	if err := os.WriteFile(path, bytesOf(helper.Exec, q.lists()), 0o644); err != nil {
		return "", err
	}
	return strings.TrimSuffix(s.attack("raw", "REQUEST="+path), "\n"), nil
}

// attackRaw sends a request from a file.
func attackRaw() error {
	b := bytesOf(helper.Exec, request("true").lists())
	var err error
	if path := os.Getenv("REQUEST"); path != "" {
		b, err = os.ReadFile(path)
	}
	if err != nil {
		return err
	}
	f, err := sendRaw(b)
	if err != nil {
		return err
	}
	fmt.Printf("%c %s\n", f.Kind, f.Lists[0][0])
	return nil
}

// sendRaw sends bytes with three descriptors of /dev/null and returns the answer.
func sendRaw(b []byte) (*helper.Frame, error) {
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(null)
	c, err := dialSocket()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if _, _, err := c.WriteMsgUnix(b, unix.UnixRights(null, null, null), nil); err != nil && !errors.Is(err, unix.EPIPE) { // refused before
		return nil, err
	}
	f, err := helper.Read(c)
	if err == nil && (len(f.Lists) == 0 || len(f.Lists[0]) == 0) {
		err = fmt.Errorf("an empty answer %c", f.Kind)
	}
	return f, err
}

// While a path is exchanged for a link to what is root's, again and again, no request
// shows it: neither as a grant nor as the workspace, the cache or the place of a commit.
func TestHelperRaces(t *testing.T) {
	s := serveUsers(t)
	secret := filepath.Join(filepath.Dir(s.home), "secret")
	if err := os.Mkdir(secret, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(secret, "f"), []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const swap = `mkdir d; echo mine >d/f; ln -s "$1" l; while :; do mv -T d e; mv -T l d; mv -T d l; mv -T e d; sleep 0.01; done 2>/dev/null`
	racer := s.as(ann, "/bin/sh", "-c", swap, "sh", secret)
	if err := racer.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = racer.Process.Kill(); _ = racer.Wait() }()
	s.until("the race is on", func() bool { return exists(filepath.Join(s.home, "l")) || exists(filepath.Join(s.home, "e")) })
	won, end := 0, time.Now().Add(patience)
	for i := 0; i < 24 || won == 0; i++ {
		flags := [][]string{{"--ro", "d"}, {"--rw", "d"}, {"--cow", "d"}, {"-w", "d"}}[i%4]
		args := append(append([]string{"exec", "-q", "--commit", "success"}, flags...), "--", "sh", "-c", "cat "+s.home+"/d/f; echo bad >"+s.home+"/d/f")
		out, errs, _ := s.guard(ann, args...)
		if strings.Contains(out, "secret") {
			t.Fatalf("%v shows what is root's", flags)
		}
		if strings.Contains(out, "mine") || strings.Contains(out, "bad") {
			won++
		}
		if time.Now().After(end) {
			t.Fatalf("nothing is ever granted: %q", errs)
		}
	}
	if b, err := os.ReadFile(filepath.Join(secret, "f")); err != nil || string(b) != "secret\n" {
		t.Errorf("root's file: %q %v", b, err)
	}
}

// Who traces the client is its user, and has what the client has: the ids are not the
// message's, and the helper's own processes cannot be traced.
func TestHelperTraced(t *testing.T) {
	s := serveUsers(t)
	cmd := s.as(ann, agentguard(), "exec", "-q", "--", "sleep", "1000000.4")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.until("the run is live", func() bool { out, _, _ := s.guard(ann, "ps"); return strings.Contains(out, "1000000.4") })
	s.until("the next caller is waited for", func() bool { return s.children() >= 2 })
	if out := s.attack("trace", "HELPER="+strconv.Itoa(s.cmd.Process.Pid)); out != "" {
		t.Error(out)
	}
	if out, errs, status := s.guard(ann, "runs", "kill", "last"); status != 0 {
		t.Errorf("%q %q", out, errs)
	}
	_ = cmd.Wait()
}

// attackTrace tries to get at the helper and its processes.
func attackTrace() error {
	pids := []string{os.Getenv("HELPER")}
	tasks, _ := filepath.Glob("/proc/" + pids[0] + "/task/*/children")
	for _, t := range tasks {
		b, err := os.ReadFile(t)
		if err != nil {
			return err
		}
		pids = append(pids, strings.Fields(string(b))...)
	}
	if len(pids) < 3 {
		return fmt.Errorf("only %v", pids)
	}
	for _, text := range pids {
		pid, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		for what, err := range map[string]error{
			"ptrace": unix.PtraceSeize(pid), "kill": unix.Kill(pid, unix.SIGTERM), "stop": unix.Kill(pid, unix.SIGSTOP),
			"setpriority": unix.Setpriority(unix.PRIO_PROCESS, pid, 19), "environ": second(os.ReadFile("/proc/" + text + "/environ")),
			"fd": second(os.ReadDir("/proc/" + text + "/fd")), "oom": os.WriteFile("/proc/"+text+"/oom_score_adj", []byte("1000"), 0),
		} {
			if err == nil {
				fmt.Printf("%s of process %d\n", what, pid)
			}
		}
	}
	return nil
}

func second[T any](_ T, err error) error { return err }
