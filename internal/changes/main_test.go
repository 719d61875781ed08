package changes

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// The tests run as root in a mount namespace of their own: the process starts
// itself again in one.
const stageVar = "AGENTGUARD_TEST_STAGE"

func TestMain(m *testing.M) {
	if at := os.Getenv(killVar); at != "" {
		commitAndDie(at)
	}
	if os.Geteuid() != 0 || os.Getenv(stageVar) != "" {
		os.Exit(testenv.Main(m))
	}
	os.Exit(enterStage())
}

// killVar makes a process of the test one that commits and kills itself before
// the act with this number: descriptors 3 change set, 4 journal, 5 tree.
const killVar = "AGENTGUARD_TEST_KILL_AT"

// ended is the status of one whose commit came to its end.
const ended = 7

func commitAndDie(at string) {
	n, err := strconv.Atoi(at)
	die := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	die(err)
	set, err := Open(os.NewFile(3, "changes"))
	die(err)
	picks := make([]bool, len(set.Entries))
	for i := range picks {
		picks[i] = true
	}
	die(set.Commit(os.NewFile(5, "tree"), set.at(1), picks, Options{ID: "test", Journal: os.NewFile(4, "journal"), Step: func(name string) {
		if n--; n < 0 {
			fmt.Println(name)
			die(unix.Kill(os.Getpid(), unix.SIGKILL))
			select {} // the signal is on its way
		}
	}}))
	os.Exit(ended)
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
