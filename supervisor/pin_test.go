package supervisor

import (
	"os"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
)

// A directory between a writable grant and a read-only grant inside it cannot
// be renamed away with the mount in it.
func TestPinnedDirectories(t *testing.T) {
	testenv.Root(t)
	base := publicDir(t)
	must(t, os.MkdirAll(base+"/ws/a/b/ro", 0o755), os.WriteFile(base+"/ws/a/b/ro/f", []byte("good\n"), 0o644))
	e := newEnvelope(t, "rw="+base+"/ws", "ro="+base+"/ws/a/b/ro")
	got := e.run(t, "cd "+base+"/ws; for d in a a/b; do mv $d $d.old 2>/dev/null && echo moved $d; done; touch a/new a/b/new && echo written; cat a/b/ro/f; { echo x >a/b/ro/f; } 2>/dev/null || echo kept")
	if got != "written\ngood\nkept\n" {
		t.Errorf("%q", got)
	}
}
