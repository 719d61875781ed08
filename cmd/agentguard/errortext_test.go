package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentguard/agentguard/internal/testenv"
)

var updateTexts = flag.Bool("update-texts", false, "rewrite testdata/errors from what the commands say")

// TestErrorTexts holds what the program says when something does not work, word
// for word. There is a file for each class of failure in testdata/errors. In it
//
//	# TEXT      is a remark
//	! COMMAND   prepares something, in a shell
//	$ COMMAND   is what a person typed; the lines after it are what stderr says
//	= STATUS    ends them
//
// The directory is $WORK, a run's id RUN, a duration TIME.
func TestErrorTexts(t *testing.T) {
	testenv.Root(t)
	files, err := filepath.Glob("../../testdata/errors/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got := errorTexts(t, string(want))
			if *updateTexts {
				if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

// errorTexts runs the commands of a file and returns the file as it should be.
func errorTexts(t *testing.T, file string) string {
	t.Helper()
	if err := emptyDir(stateDir); err != nil {
		t.Fatal(err)
	}
	work, err := os.MkdirTemp("", "agentguard-errors-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(work) })
	if err := os.Chmod(work, 0o755); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(file) {
		command, typed := strings.CutPrefix(line, "$ ")
		switch {
		case typed:
			text, status := shell(t, work, command)
			out.WriteString(line + text + "= " + strconv.Itoa(status) + "\n")
		case strings.HasPrefix(line, "! "):
			if text, status := shell(t, work, line[2:]); status != 0 {
				t.Fatalf("%s: status %d, %s", line, status, text)
			}
			out.WriteString(line)
		case line == "\n", strings.HasPrefix(line, "#"):
			out.WriteString(line)
		}
	}
	return out.String()
}

// The parts of a text that differ from run to run.
var (
	runID    = regexp.MustCompile(`[0-9]{8}-[0-9]{6}-[a-z0-9]{6}`)
	whole    = regexp.MustCompile(`(?m)^(agentguard: )[0-9]+s\b`) // seconds, and none: a limit in a text is said so too
	duration = regexp.MustCompile(`\b([0-9]+m)?([0-9]+(\.[0-9]+)?(ms|µs)|[0-9]+\.[0-9]+s)\b`)
	verdict  = regexp.MustCompile(`(?m)^agentguard: the record is .*\n`) // of a machine that skipped a program
)

// shell runs one line in the directory work and returns what it wrote to stderr.
func shell(t *testing.T, work, command string) (text string, status int) {
	t.Helper()
	c := exec.Command("sh", "-c", command)
	var stderr bytes.Buffer
	c.Dir, c.Stderr = work, &stderr
	c.Env = []string{"PATH=" + programs() + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + work + "/home", "WORK=" + work}
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	text = strings.ReplaceAll(stderr.String(), work, "$WORK")
	text = verdict.ReplaceAllString(text, "")
	text = whole.ReplaceAllString(text, "${1}TIME")
	text = duration.ReplaceAllString(runID.ReplaceAllString(text, "RUN"), "TIME")
	return text, c.ProcessState.ExitCode()
}
