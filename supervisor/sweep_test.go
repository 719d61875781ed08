package supervisor

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A start looks for debris when a lock tells of a death, when a note asks for
// its own records, and once in a while; otherwise it does not.
func TestNeedsSweep(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Dir(lockPath(dir, "x")), 0o700))
	if !needsSweep(dir, "own", "1:2") {
		t.Error("nothing was ever looked at")
	}
	must(t, swept(dir), swept(dir))
	held, err := os.Create(lockPath(dir, "other"))
	must(t, err, unix.Flock(int(held.Fd()), unix.LOCK_EX), os.WriteFile(lockPath(dir, "own"), nil, 0o600))
	if needsSweep(dir, "own", "1:2") {
		t.Error("all are alive")
	}
	must(t, held.Close())
	if !needsSweep(dir, "own", "1:2") {
		t.Error("another is dead")
	}
	must(t, os.Remove(lockPath(dir, "other")))
	long := time.Now().Add(-2 * sweepEvery)
	must(t, os.Chtimes(filepath.Dir(lockPath(dir, "x"))+".swept", long, long))
	if !needsSweep(dir, "own", "1:2") {
		t.Error("it is long ago")
	}
}

// Whoever sweeps up after a supervisor leaves a note where the record is another's.
func TestBury(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Dir(lockPath(dir, "x")), 0o700), swept(dir))
	for id, state := range map[string]string{"ours": "1:2", "theirs": "3:4", "none": ""} {
		must(t, os.WriteFile(lockPath(dir, id), []byte(state), 0o600), bury(dir, id, "1:2"))
		if exists(lockPath(dir, id)) {
			t.Errorf("%s: the lock is still there", id)
		}
	}
	if got := notes(dir, "3:4"); !slices.Equal(got, []string{notePath(dir, "3:4", "theirs")}) {
		t.Errorf("notes %q", got)
	}
	if got := notes(dir, "1:2"); got != nil {
		t.Errorf("notes %q", got)
	}
	if needsSweep(dir, "own", "1:2") || !needsSweep(dir, "own", "3:4") {
		t.Error("a note asks the start that it is for, and no other")
	}
	must(t, removeNotes(notes(dir, "3:4")))
	if left, err := os.ReadDir(filepath.Join(dir, "dead")); err != nil || len(left) > 0 {
		t.Errorf("left of notes: %v, %v", left, err)
	}
}
