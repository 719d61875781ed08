//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
)

// TestIncident stages the incident of docs/incident.md and types what the page
// types: every line of output on the page must come, whatever the numbers in it
// are. Lines of the page that are "..." stand for what was left out.
func TestIncident(t *testing.T) {
	testenv.Root(t)
	if err := emptyDir(stateDir); err != nil {
		t.Fatal(err)
	}
	repo := filepath.Join(t.TempDir(), "prices")
	if out, err := exec.Command("../../testdata/incident/make.sh", repo).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	typed(t, readDoc(t, "incident.md"), repo, "/srv/prices", 10)
}

// TestReadme types the first minute of README.md.
func TestReadme(t *testing.T) {
	testenv.Root(t)
	if err := emptyDir(stateDir); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	typed(t, string(page), t.TempDir(), "/src", 3)
}

// typed runs the commands of a page's console blocks in dir, which the page calls
// another name, and looks for each line that the page shows. The page has at
// least so many commands.
func typed(t *testing.T, page, dir, called string, least int) {
	t.Helper()
	steps := incidentSteps(page)
	if len(steps) < least {
		t.Fatalf("%d commands on the page", len(steps))
	}
	var script strings.Builder
	for i, s := range steps {
		fmt.Fprintf(&script, "echo; echo %%%%step %d\n%s\n", i, s.command)
	}
	cmd := exec.Command("bash", "-c", script.String())
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+programs()+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Logf("the last command ended with %v", err)
	}
	text := strings.ReplaceAll(string(out), dir, called)
	for i, s := range steps {
		_, got, _ := strings.Cut(text, fmt.Sprintf("%%%%step %d\n", i))
		got, _, _ = strings.Cut(got, "\n%%step ")
		for _, want := range s.output {
			if !strings.Contains("\n"+sameButNumbers(got)+"\n", "\n"+sameButNumbers(want)+"\n") {
				t.Errorf("$ %s\nprinted no line like\n%s\nbut\n%s", s.command, want, got)
			}
		}
	}
}

type incidentStep struct {
	command string
	output  []string
}

// incidentSteps are the commands of the page's console blocks, with what they print.
func incidentSteps(page string) (steps []incidentStep) {
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(page, -1) {
		for line := range strings.Lines(block[1]) {
			line = strings.TrimRight(line, "\n")
			switch command, ok := strings.CutPrefix(line, "$ "); {
			case ok:
				steps = append(steps, incidentStep{command: command})
			case len(steps) > 0 && strings.TrimSpace(line) != "..." && line != "":
				last := &steps[len(steps)-1]
				last.output = append(last.output, line)
			}
		}
	}
	return steps
}

// sameButNumbers takes out what differs from run to run and from host to host: numbers,
// ids, digests, and how columns are filled up.
func sameButNumbers(s string) string {
	s = regexp.MustCompile(`20\d{6}-\d{6}-[0-9a-z]{6}`).ReplaceAllString(s, "RUN")
	s = regexp.MustCompile(`[0-9a-f]{8}-\d+-\d+`).ReplaceAllString(s, "PROC")
	s = regexp.MustCompile(`[A-Za-z0-9+/]{42,}=*`).ReplaceAllString(s, "DIGEST")
	s = regexp.MustCompile(`agentguard/\S+\+[0-9a-f]{8}`).ReplaceAllString(s, "KEY")
	s = regexp.MustCompile(`durable (true|false)`).ReplaceAllString(s, "durable EITHER") // a run of a second waits for the disk
	s = regexp.MustCompile(`by agentguard \S+`).ReplaceAllString(s, "by agentguard VERSION")
	s = regexp.MustCompile(`\d+(\.\d+)*(ms|s)?`).ReplaceAllString(s, "N")
	s = regexp.MustCompile(`[KMG]iB\b`).ReplaceAllString(s, "B")
	return regexp.MustCompile(`[ \t]+`).ReplaceAllString(s, " ")
}
