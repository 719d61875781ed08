package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// witnessed starts a run that waits for the end of its input, ends the process that stayed outside the user namespace
// (who is killed is the user's own, and so are the run's files), and lets the run go on.
func witnessed(l *loner, args ...string) (errs string, status int) {
	l.t.Helper()
	cmd := l.as(append([]string{agentguard(), "exec"}, args...)...)
	var e bytes.Buffer
	cmd.Stderr = &e
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		l.t.Fatal(err)
	}
	pidOf := func(name string) string {
		for _, p := range l.processes() {
			if pid, is, _ := strings.Cut(p, " "); is == name {
				return pid
			}
		}
		return ""
	}
	l.until("the command runs", func() bool { return pidOf("cat") != "" })
	pid, err := strconv.Atoi(pidOf("agentguard-out"))
	if err == nil {
		err = unix.Kill(pid, unix.SIGKILL)
	}
	if err != nil {
		l.t.Fatalf("%v: %q", err, l.processes())
	}
	l.until("it is dead", func() bool { return pidOf("agentguard-out") == "" })
	if err := in.Close(); err != nil {
		l.t.Fatal(err)
	}
	_ = cmd.Wait()
	return e.String(), cmd.ProcessState.ExitCode()
}

// A run whose process outside was killed is brought to its end, and its changes to the host, by what that process had said before.
func TestUserNSWitnessKilled(t *testing.T) {
	l := alone(t)
	if errs, status := witnessed(l, "--commit", "success", "--", "sh", "-c", "cat; echo new >made"); status != 0 || !strings.Contains(errs, "1 change committed") {
		t.Errorf("%d %q", status, errs)
	}
	if b, err := os.ReadFile(filepath.Join(l.work, "made")); string(b) != "new\n" {
		t.Errorf("%q, %v", b, err)
	}
}

// What cannot be told without it is said, with a status that says so, and what there is is kept.
func TestUserNSWitnessMissed(t *testing.T) {
	l := alone(t)
	roots := filepath.Join(l.work, "roots")
	if err := os.WriteFile(roots, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	errs, status := witnessed(l, "--commit", "success", "--", "sh", "-c", "cat; echo new >made; rm -f roots")
	if status != 125 || !strings.Contains(errs, "(agentguard-out) has ended") || !strings.Contains(errs, "is kept: agentguard diff ") || strings.Contains(errs, "--state") {
		t.Errorf("%d %q", status, errs)
	}
	if !exists(roots) || exists(filepath.Join(l.work, "made")) {
		t.Error("the host's files were changed")
	}
	if out, errs, status := l.guard("commit", "--force"); status != 0 || !exists(filepath.Join(l.work, "made")) {
		t.Errorf("%d %q %q", status, out, errs)
	}
}
