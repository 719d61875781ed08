package supervisor

import (
	"os"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
)

func TestTryOverlay(t *testing.T) {
	testenv.Root(t)
	dir, err := os.Open(t.TempDir())
	must(t, err)
	defer dir.Close()
	if err := tryOverlay(dir); err != nil {
		t.Error(err)
	}
	// FUSE without attributes and the like aside, what is not a directory cannot be a layer.
	file, err := os.Open("/proc/self/exe")
	must(t, err)
	defer file.Close()
	if err := tryOverlay(file); err == nil {
		t.Error("a file was shown as a directory")
	}
}

// Where records lie in memory, the run's own storage cannot lie on disk, and the
// row says so.
func TestTryDisk(t *testing.T) {
	testenv.Root(t)
	if _, err := os.Stat("/dev/shm"); err != nil {
		testenv.Missing(t, "tmpfs", err.Error())
	}
	if _, err := tryDiskAt("/dev/shm/agentguard-not-there/state"); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("%v", err)
	}
}
