package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// What is kept between runs goes when nobody runs, and only then; what a dead
// supervisor left goes too, with a note that its record is to be recovered.
func TestReleaseHost(t *testing.T) {
	testenv.Root(t)
	layout := detectLayout(t)
	dir, prefix := t.TempDir(), testenv.CgroupName()+"-"
	leaf := filepath.Join(layout.Unified, prefix+"00000001", "gone.run")
	must(t, os.MkdirAll(filepath.Join(dir, "live"), 0o700), os.MkdirAll(filepath.Join(dir, "code"), 0o700), os.MkdirAll(leaf, 0o755))
	t.Cleanup(func() { os.Remove(leaf); os.Remove(filepath.Dir(leaf)) })
	must(t, os.WriteFile(filepath.Join(dir, "code", "x"), nil, 0o600), os.WriteFile(lockPath(dir, "gone"), []byte("1:2"), 0o600))
	slot := &uidSlot{n: 1}
	ns, err := slot.userns(dir)
	if err != nil {
		testenv.Missing(t, "userns", err.Error())
	}
	must(t, ns.Close())

	lock, err := os.OpenFile(lockPath(dir, "here"), os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	var refusal *Refusal
	if err := releaseHost(dir, prefix); !errors.As(err, &refusal) || !strings.Contains(refusal.What, "here is live") {
		t.Errorf("with a live run: %v", err)
	}
	for _, name := range []string{leaf, filepath.Join(dir, "code", "x"), filepath.Join(dir, "userns", "1")} {
		if _, err := os.Stat(name); err != nil {
			t.Errorf("with a live run: %v", err)
		}
	}

	swept := make(chan error)
	go func() { swept <- releaseHost(dir, prefix) }()
	must(t, lock.Close(), <-swept) // a run that is ending is waited for
	for _, name := range []string{filepath.Dir(leaf), filepath.Join(dir, "code"), filepath.Join(dir, "userns", "1"), lockPath(dir, "gone")} {
		if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", name, err)
		}
	}
	if of, err := os.ReadFile(notePath(dir, "1:2", "gone")); string(of) != "1:2" {
		t.Errorf("no note of the dead run: %q %v", of, err)
	}
	must(t, releaseHost(dir, prefix)) // nothing is no failure
}
