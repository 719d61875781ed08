package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
)

// Daemons that fork twice and lead sessions of their own live on without agentguard, and die
// with the run, whatever ends it; and so does a fork bomb, with nobody else's harm.
func TestLandlockEnds(t *testing.T) {
	const daemons = `trap "" TERM HUP; (setsid sh -c 'trap "" TERM HUP; (setsid sleep 1000 &); exec sleep 1000' >/dev/null 2>&1 &); `
	const bomb = `b() { b & b & sleep 1000; }; b >/dev/null 2>&1 & `
	c := corner(t, "filter")
	native := c.native("sh", "-c", daemons)
	if err := native.Run(); err != nil {
		t.Fatal(err)
	}
	sleeps := func() []string {
		return slices.DeleteFunc(c.processes(), func(p string) bool { return !strings.HasSuffix(p, " sleep") })
	}
	c.until("the daemons live on", func() bool { return len(sleeps()) == 2 })
	before := sleeps()
	t.Cleanup(func() {
		for _, p := range before {
			var pid int
			_, _ = fmt.Sscan(p, &pid)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
	same := func(what string) {
		t.Helper()
		c.until("nothing of the run lives: "+what, func() bool { return slices.Equal(c.processes(), before) })
	}
	for name, script := range map[string]string{"daemons": daemons, "bomb": bomb} {
		if _, errs, status := c.inside("--", "sh", "-c", script+"exit 3"); status != 3 {
			t.Errorf("%s: %d %s", name, status, errs)
		}
		same(name + ", the command ends")
		if _, errs, status := c.inside("--wall", "100ms", "--", "sh", "-c", script+"while :; do sleep 1000; done"); status != 124 {
			t.Errorf("%s: %d %s", name, status, errs)
		}
		same(name + ", the wall limit")
		cmd := c.as(agentguard(), "exec", "-q", "--allow-gap", "landlock", "--", "sh", "-c", script+"echo ready; while :; do sleep 1000; done")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
			t.Fatal(line, err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		same(name + ", the supervisor is killed")
	}
}

// Somebody kills, or stops, the guardian from outside: nothing of the run lives on, nobody else is
// harmed, and the record says that it was so.
func TestLandlockGuardianIsKilled(t *testing.T) {
	scoped(t)
	c := corner(t, "filter")
	bystander := c.native("sleep", "1000")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = bystander.Process.Kill()
		_ = bystander.Wait()
	}()
	for what, sig := range map[string]unix.Signal{"killed": unix.SIGKILL, "stopped": unix.SIGSTOP} {
		file := filepath.Join(c.home, what+".json")
		cmd := c.as(agentguard(), "exec", "--allow-gap", "landlock", "--wall", "30s", "--json", file, "--", "sh", "-c",
			`trap "" TERM HUP; (setsid sh -c 'trap "" TERM; (setsid sleep 1000 &); while :; do (sleep 1000 & sleep 0.01); done' >/dev/null 2>&1 &); echo $PPID; exec sleep 1000`)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var errs strings.Builder
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var guardian int
		if _, err := fmt.Fscan(out, &guardian); err != nil {
			t.Fatal(err)
		}
		c.until("the daemons fork", func() bool { return len(c.processes()) > 8 })
		if err := unix.Kill(guardian, sig); err != nil {
			t.Fatal(err)
		}
		if sig == unix.SIGSTOP {
			if err := unix.Kill(cmd.Process.Pid, unix.SIGTERM); err != nil { // the command ignores it: it is killed
				t.Fatal(err)
			}
		}
		_ = cmd.Wait()
		c.until("nothing of the run lives: "+what, func() bool { return len(c.processes()) == 1 })
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatalf("%v: %s", err, errs.String())
		}
		r, err := runs.ParseResult(b)
		if err != nil {
			t.Fatal(err)
		}
		if sig == unix.SIGSTOP {
			continue
		}
		const says = "the guardian of the run was killed from outside"
		if r.Status != 137 || !strings.Contains(errs.String(), says) || r.Record.Verdict != "incomplete" || !strings.Contains(strings.Join(r.Record.Findings, "\n"), says) {
			t.Errorf("%d %s %q, %s %q", r.Status, r.Reason, errs.String(), r.Record.Verdict, r.Record.Findings)
		}
		if shown, _, _ := c.guard("runs", "show", r.ID); !strings.Contains(shown, says) {
			t.Errorf("runs show: %q", shown)
		}
	}
}
