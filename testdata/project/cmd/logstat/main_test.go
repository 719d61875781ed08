package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The test binary is the command when this is set: the tests below run it as
// a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv("LOGSTAT_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func logstat(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), "LOGSTAT_MAIN=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestSample(t *testing.T) {
	want, err := os.ReadFile(filepath.Join("..", "..", "samples", "access.json"))
	if err != nil {
		t.Fatal(err)
	}
	got, errs, code := logstat(t, "", filepath.Join("..", "..", "samples", "access.log"))
	if code != 0 || got != string(want) {
		t.Errorf("exit %d, stderr %q, got:\n%s\nwant:\n%s", code, errs, got, want)
	}
}

func TestStdin(t *testing.T) {
	got, _, code := logstat(t, "junk\n")
	if code != 0 || !strings.Contains(got, `"bad_lines": 1`) {
		t.Errorf("exit %d, got %s", code, got)
	}
}

func TestMissingFile(t *testing.T) {
	_, errs, code := logstat(t, "", filepath.Join(t.TempDir(), "none.log"))
	if code != 1 || !strings.Contains(errs, "none.log") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
}
