package changes

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// The tests run as root in a mount namespace of their own: the process starts
// itself again in one.
const stageVar = "AGENTGUARD_TEST_STAGE"

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 || os.Getenv(stageVar) != "" {
		os.Exit(testenv.Main(m))
	}
	os.Exit(enterStage())
}

func privateMounts(t *testing.T) {
	t.Helper()
	testenv.Root(t)
	if os.Getenv(stageVar) == "" {
		t.Fatal("not on the stage")
	}
}

func enterStage() int {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		panic(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		panic(err)
	}
	if err := os.Setenv(stageVar, "1"); err != nil {
		panic(err)
	}
	panic(unix.Exec("/proc/self/exe", os.Args, os.Environ()))
}
