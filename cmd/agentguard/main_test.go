package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// The tests of this package run the real program as root on the real kernel.
//
// They do so on a stage of their own: a mount namespace in which
// /var/lib/agentguard is a tmpfs, so that the records of the machine are
// neither read nor written, and a network namespace that stands for the host,
// so that nothing can leave the machine even when a test fails. Cgroups, BPF
// programs and /run/agentguard are the machine's.

// stageVar tells the test process that it stands on the stage; its value is
// the directory of the programs that were built for it.
const stageVar = "AGENTGUARD_TEST_STAGE"

// programsVar names a directory that has the programs already: a guest of
// .ci/vm has no Go to build them.
const programsVar = "AGENTGUARD_TEST_PROGRAMS"

// stateDir is where root's records lie by default.
const stateDir = "/var/lib/agentguard"

func TestMain(m *testing.M) {
	// Below nohup(1) all that is started here would ignore this signal, as a caller's wish. What is
	// handled here has its default there.
	if signal.Ignored(unix.SIGHUP) {
		signal.Notify(make(chan os.Signal, 1), unix.SIGHUP)
	}
	if os.Getenv("AGENTGUARD_TEST_ACT") == "get" { // a client inside a run
		getAsGo()
		return
	}
	if len(os.Args) > 1 && os.Args[1] == withoutUserNS {
		execWithoutUserNS(os.Args[2:])
	}
	if name := os.Getenv(attackVar); name != "" { // on the helper, by a user
		attackMain(name)
		return
	}
	if os.Geteuid() != 0 {
		os.Exit(m.Run()) // each test says what it needs
	}
	if os.Getenv(stageVar) == "" {
		os.Exit(enterStage())
	}
	if err := setStage(); err != nil {
		fmt.Fprintln(os.Stderr, "stage:", err)
		os.Exit(1)
	}
	os.Exit(testenv.Main(m))
}

// enterStage builds the programs and runs this test again in new namespaces.
func enterStage() int {
	scratch, err := os.MkdirTemp("", "agentguard-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch)
	dir := os.Getenv(programsVar)
	err = os.Chmod(scratch, 0o755)
	if dir == "" {
		dir = scratch
		err = errors.Join(err, build(dir))
	}
	if err = errors.Join(err, prime(dir, scratch)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), stageVar+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

// build makes the program as it is released, and the probe, without cgo.
func build(dir string) error {
	for name, pkg := range map[string]string{"agentguard": ".", "agentguard-http": "../agentguard-http", "probe": "../../testdata/script/probe"} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, name), pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if v := os.Getenv("HTTP_TOOLCHAIN"); v != "" && name == "agentguard-http" { // of the Makefile
			cmd.Env = append(cmd.Env, "GOTOOLCHAIN="+v)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
		}
	}
	return nil
}

// prime makes what the machine keeps by one run on the real stage: were the
// first run on ours, its BPF file system would be mounted here only, and end
// with the tests.
func prime(dir, scratch string) error {
	state := filepath.Join(scratch, "prime")
	first := exec.Command(filepath.Join(dir, "agentguard"), "exec", "--state", state, "--", "true")
	first.Dir = "/usr"
	if out, err := first.CombinedOutput(); err != nil {
		return fmt.Errorf("the first run: %w\n%s", err, out)
	}
	return os.RemoveAll(state)
}

func setStage() error {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("agentguard-test", stateDir, "tmpfs", 0, "mode=0700,size=512m"); err != nil {
		return fmt.Errorf("mount %s: %w", stateDir, err)
	}
	return loopbackUp()
}

// loopbackUp switches on lo in the stage's network namespace.
func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	ifreq, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifreq.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifreq)
}

// programs is the directory of agentguard and probe.
func programs() string { return os.Getenv(stageVar) }

func agentguard() string { return filepath.Join(programs(), "agentguard") }
