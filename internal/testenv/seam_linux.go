package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// SeamBinary is an agentguard built with the tag that lets single layers be
// switched off (AGENTGUARD_SEAM_OFF; no other build reads it): built once, and removed by
// [Main]. What such builds keep between runs goes at the end of the test.
func SeamBinary(t testing.TB) string {
	t.Helper()
	Root(t)
	t.Cleanup(removeSeamDebris)
	if bin := os.Getenv("AGENTGUARD_TEST_SEAM_BINARY"); bin != "" {
		return bin // built outside: a test machine without a Go toolchain
	}
	bin, err := seamBinary()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

var seamBinary = sync.OnceValues(func() (string, error) {
	var err error
	if scratch, err = os.MkdirTemp("", "agentguard-seam-"); err != nil {
		return "", err
	}
	bin := filepath.Join(scratch, "agentguard")
	cmd := exec.Command("go", "build", "-tags", "agentguard_seam", "-o", bin, "github.com/agentguard/agentguard/cmd/agentguard")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building: %w\n%s", err, out)
	}
	return bin, os.Chmod(scratch, 0o755)
})

// removeSeamDebris removes what test builds keep between runs: their parents
// below the cgroup roots and their runtime directory.
func removeSeamDebris() {
	for _, pattern := range []string{"/sys/fs/cgroup/seam-agentguard-*", "/sys/fs/cgroup/*/seam-agentguard-*"} {
		dirs, _ := filepath.Glob(pattern)
		for _, d := range dirs {
			_ = unix.Rmdir(d)
		}
	}
	pins, _ := filepath.Glob("/run/agentguard-seam/userns/*")
	for _, p := range append(pins, "/run/agentguard-seam/bpf") {
		_ = unix.Unmount(p, 0)
	}
	_ = os.RemoveAll("/run/agentguard-seam")
}
