package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// launchCost times a run of /bin/true with allowlists of several sizes, interleaved.
func launchCost(w io.Writer, o *options, dir string) error {
	sizes := []int{0, 1, 100, 10_000}
	took := make([][]time.Duration, len(sizes))
	for round := range min(o.rounds, 20) + 1 {
		for i, n := range sizes {
			argv, err := launch(o, dir, n)
			if err != nil {
				return err
			}
			began := time.Now()
			if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("a launch with %d entries: %w: %s", n, err, out)
			}
			if round > 0 {
				took[i] = append(took[i], time.Since(began))
			}
		}
	}
	fmt.Fprint(w, "launch of /bin/true, medians:")
	for i, n := range sizes {
		slices.Sort(took[i])
		fmt.Fprintf(w, " %d entries %.1f ms;", n, float64(took[i][len(took[i])/2].Microseconds())/1e3)
	}
	_, err := fmt.Fprintln(w)
	return err
}

// launch is the command line of a run with so many allowed names.
func launch(o *options, dir string, n int) ([]string, error) {
	ag, err := filepath.Abs(o.agentguard)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString("sandbox:\n  filesystem: {workspace: {path: ws, mode: ro}}\n")
	if n > 0 {
		b.WriteString("  network:\n    allowlist:\n")
	}
	for i := range n {
		fmt.Fprintf(&b, "      - name%d.example.com:443\n", i)
	}
	policy := filepath.Join(dir, fmt.Sprintf("policy%d.yaml", n))
	if err := os.WriteFile(policy, []byte(b.String()), 0o644); err != nil {
		return nil, err
	}
	return []string{ag, "exec", "-q", "--state", filepath.Join(dir, "state"), "-p", policy, "--", "/bin/true"}, nil
}
