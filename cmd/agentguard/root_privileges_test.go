package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// lentWords are the words of [capsOf] for a root run whose command runs.
func lentWords(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	word := func(name string) string {
		_, rest, _ := strings.Cut(string(b), "\n"+name+":\t")
		value, _, _ := strings.Cut(rest, "\n")
		return strings.TrimLeft(value, "0")
	}
	return fmt.Sprintf("CapInh , CapPrm %s, CapEff %x, CapBnd %s, CapAmb , NoNewPrivs %s", word("CapPrm"), uint64(livingCaps), word("CapBnd"), word("NoNewPrivs"))
}

// rootRun is a run of root's in process whose command waits for a line, and whose supervisor has given up
// what it gives up.
func rootRun(t *testing.T, dir string, args ...string) (cmd *exec.Cmd, goOn io.WriteCloser, errs *bytes.Buffer) {
	t.Helper()
	cmd, errs = exec.Command(agentguard(), append([]string{"exec", "-q", "--state", t.TempDir()}, args...)...), &bytes.Buffer{}
	cmd.Dir, cmd.Stderr, cmd.Env = dir, errs, []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent"}
	goOn, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	want, end := lentWords(t), time.Now().Add(time.Minute)
	for capsOf(cmd.Process.Pid) != want {
		if hasEnded(cmd) || time.Now().After(end) {
			t.Errorf("%q is not %q: %s", capsOf(cmd.Process.Pid), want, errs)
			break
		}
		time.Sleep(time.Millisecond)
	}
	return cmd, goOn, errs
}

// A root run can use little while its command runs, and all that its end takes: files of
// any user are committed, with their owners.
func TestRootPrivileges(t *testing.T) {
	testenv.Root(t)
	dir, err := os.MkdirTemp("", "agentguard-root-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for name, uid := range map[string]int{"ann": ann, "bob": bob, "root": 0} {
		sub := filepath.Join(dir, name)
		if err := os.Mkdir(sub, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sub, "f"), []byte("old\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for path, mode := range map[string]os.FileMode{filepath.Join(sub, "f"): 0o666, sub: 0o777} { // the command has no capability
			if err := errors.Join(os.Chown(path, uid, uid), os.Chmod(path, mode)); err != nil {
				t.Fatal(err)
			}
		}
	}
	result := filepath.Join(dir, "ann", "result.json")
	cmd, goOn, errs := rootRun(t, dir, "--user", "0", "--json", result, "--commit", "success", "--", "sh", "-c",
		"read x; for d in ann bob root; do echo new >>$d/f; echo made >$d/made; done; exit 0")
	_, _ = io.WriteString(goOn, "\n")
	_ = goOn.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err, errs)
	}
	for name, uid := range map[string]int{"ann": ann, "bob": bob, "root": 0} {
		path := filepath.Join(dir, name, "f")
		var st unix.Stat_t
		b, err := os.ReadFile(path)
		if err == nil {
			err = unix.Stat(path, &st)
		}
		if err != nil || string(b) != "old\nnew\n" || int(st.Uid) != uid {
			t.Errorf("%s: %q of user %d: %v: %s", name, b, st.Uid, err, errs)
		}
	}
	if _, err := os.Stat(result); err != nil {
		t.Error(err)
	}
}
