package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
)

// With one layer off, and with neither BPF nor a look-up program, the attempts
// reach nothing either; where the relay is still there, what is allowed works.
func TestEgressEitherLayer(t *testing.T) {
	w := attemptEvasions(t)
	w.bin = testenv.SeamBinary(t)
	for _, c := range []struct {
		off   string
		relay bool
		wait  string // for a connection, in seconds
	}{
		{"bpf", true, "30"},      // the cgroup programs: the edge and the relay are left
		{"edge", false, "0.4"},   // the edge: the cgroup programs are left, and lead nowhere: nobody answers
		{"lookup", true, "30"},   // listeners instead of the look-up program
		{"programs", true, "30"}, // and no BPF at all
		{"hold", true, "30"},     // connections are accepted first
	} {
		t.Run(c.off, func(t *testing.T) {
			t.Setenv("AGENTGUARD_SEAM_OFF", c.off+",canary")
			out, res := w.exec(append([]string{"--allow-gap", "record"}, evasionFlags...), "/usr/bin/python3", "attempts.py", "0.2", c.wait)
			got := map[string]any{}
			line, _, _ := strings.Cut(out, "\n")
			if err := json.Unmarshal([]byte(line), &got); err != nil || len(got) < 40 {
				t.Fatalf("%d attempts, %v\n%s", len(got), err, out)
			}
			for key, value := range got {
				works := strings.HasPrefix(fmt.Sprint(value), "hello")
				if allowed := strings.HasPrefix(key, "allowed") || strings.HasPrefix(key, "the name, b"); works && !allowed {
					t.Errorf("%s: %v", key, value)
				}
			}
			if works := got["allowed"] == "hello from 203.0.113.10:8443"; works != c.relay {
				t.Errorf("allowed: %v", got["allowed"])
			}
			if c.off != "programs" && res.Denials.Count == 0 {
				t.Error("no denial in the record")
			}
		})
	}
	for _, at := range evaded {
		if n := w.hitsOf(at); n > 0 {
			t.Errorf("%s was reached %d times", at, n)
		}
	}
	if w.asked("secret") || w.asked("corp.example") || w.asked("cdn.test") {
		t.Errorf("the host was asked for %q", w.queries)
	}
}
