package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/trace"
)

// hider is an agentguard's user with a program that does not want to be seen.
func hider(l *loner, name string, mode os.FileMode) string {
	l.t.Helper()
	b, err := os.ReadFile(filepath.Join(programs(), "probe"))
	if err != nil {
		l.t.Fatal(err)
	}
	file := filepath.Join(l.work, name)
	if err := os.WriteFile(file, b, 0o755); err != nil {
		l.t.Fatal(err)
	}
	if err := os.Chmod(file, mode); err != nil {
		l.t.Fatal(err)
	}
	return file
}

// wantSeen runs it and looks for what it did in the record: refusals of the command's and in
// their order, and both programs with their arguments. closed says of which of both nobody may read the memory (the
// one that may not be read is root's): that is said, and where all is known from then.
func wantSeen(l *loner, closed map[string]bool, args ...string) {
	l.t.Helper()
	for name, mode := range map[string]os.FileMode{"readable": 0o755, "unreadable": 0o111} {
		file := hider(l, name, mode)
		r := l.result(append(slices.Clone(args), "--mode", "ro", "--", file, "hide")...)
		var got []string
		var last trace.Event
		verdict := trace.Degraded
		if closed[name] {
			verdict = trace.Incomplete
		}
		said := slices.ContainsFunc(r.Record.Findings, func(s string) bool { return strings.Contains(s, "the caller's memory could not be read") })
		for _, e := range l.eventsOf(r, verdict) {
			switch {
			case e.Phase != trace.PhaseCommand:
			case e.Kind == trace.KindExec && len(e.Argv) > 1:
				got = append(got, string(e.Argv[1]))
				last = e
			case e.Kind == trace.KindExec:
				got = append(got, "not known")
			case e.Denied():
				got = append(got, e.Syscall)
			case e.Kind == trace.KindExecFail:
				l.t.Errorf("%s: %s is told to have failed", name, e.Path)
			}
		}
		mkdir := "mkdir"
		if i := slices.Index(got, "mkdirat"); i >= 0 { // arm64
			mkdir = got[i]
		}
		if want := []string{"hide", "prctl", mkdir, "mount", "hidden"}; !slices.Equal(got, want) || r.Denials.Count != 3 || r.Status != 0 {
			l.t.Errorf("%s: status %d, %d denials, %q, want %q", name, r.Status, r.Denials.Count, got, want)
		}
		if filepath.Base(string(last.Path)) != "true" || last.PathSource != trace.PathKernel || strings.Contains(last.Text, "afterwards") != closed[name] || said != closed[name] {
			l.t.Errorf("%s: %s (%s) %q, findings %q", name, last.Path, last.PathSource, last.Text, r.Record.Findings)
		}
	}
}

func TestUserNSRecordOfWhoHides(t *testing.T) {
	wantSeen(alone(t), map[string]bool{"unreadable": true})
}

func TestLandlockRecordOfWhoHides(t *testing.T) {
	wantSeen(corner(t, "filter").loner, map[string]bool{"readable": true, "unreadable": true}, "--allow-gap", "landlock")
}
