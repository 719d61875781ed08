package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// Programs of the system are known by their digests: in a user namespace their owner looks
// like anybody, and their content is not stored for that. What the user has made is, by
// whatever path it says that it runs.
func TestUserNSStoresNoSystemPrograms(t *testing.T) {
	l := alone(t)
	own := filepath.Join(l.work, "own")
	if out, errs, status := l.finish(l.as("cp", "/bin/true", own)); status != 0 {
		t.Fatal(out, errs)
	}
	stored := func(args ...string) (programs int) {
		r := l.result(append([]string{"--mode", "ro", "--"}, args...)...)
		list, err := filepath.Glob(filepath.Join(l.home, ".local/state/agentguard/runs", r.ID, "code/*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range list {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.HasPrefix(b, []byte("\x7fELF")) {
				programs++
			}
		}
		return programs
	}
	if n := stored("sh", "-c", "/bin/true; ls >/dev/null"); n != 0 {
		t.Errorf("%d programs of the system are stored", n)
	}
	if n := stored("sh", "-c", "/bin/false; "+own); n != 1 {
		t.Errorf("%d programs are stored, and one is the user's", n)
	}
}
