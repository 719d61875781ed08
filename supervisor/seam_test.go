package supervisor_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// seamBinary builds agentguard with the tag that lets single layers be
// switched off. No other build reads AGENTGUARD_SEAM_OFF.
func seamBinary(t *testing.T) string {
	t.Helper()
	testenv.Root(t)
	t.Cleanup(removeSeamDebris)
	if bin := os.Getenv("AGENTGUARD_TEST_SEAM_BINARY"); bin != "" {
		return bin // built outside: a test machine without a Go toolchain
	}
	bin := filepath.Join(t.TempDir(), "agentguard")
	cmd := exec.Command("go", "build", "-tags", "agentguard_seam", "-o", bin, "../cmd/agentguard")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	return bin
}

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

// seamExec runs a command with layers switched off; the workspace and the state
// are private to the test.
func seamExec(t *testing.T, bin, off string, argv ...string) (out string, status int) {
	t.Helper()
	ws := t.TempDir()
	cmd := exec.Command(bin, append([]string{"exec", "--state", filepath.Join(t.TempDir(), "state"), "-w", ws, "--"}, argv...)...)
	cmd.Env = append(os.Environ(), "AGENTGUARD_SEAM_OFF="+off)
	b, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(b), cmd.ProcessState.ExitCode()
}

// With any one layer off, the canary refuses to run.
func TestCanaryNoticesEachLayer(t *testing.T) {
	bin := seamBinary(t)
	for layer, says := range map[string]string{
		"landlock": "no rule grants",
		"seccomp":  "io_uring_setup",
		"caps":     "capset",
		"mount":    "/etc/shadow",
		"netns":    "net namespace is the host's",
		"bpf":      "connect udp 192.0.2.1:9",
	} {
		t.Run(layer, func(t *testing.T) {
			out, status := seamExec(t, bin, layer, "/bin/echo", "RAN")
			if status != 125 || strings.Contains(out, "RAN\n") || !strings.Contains(out, says) || !strings.Contains(out, "canary") {
				t.Errorf("status %d, output %q", status, out)
			}
		})
	}
	if out, status := seamExec(t, bin, "", "/bin/echo", "RAN"); status != 0 || out != "RAN\n" {
		t.Errorf("with nothing off: status %d, output %q", status, out)
	}
}

const connectOut = `import socket,sys
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
try: s.connect(("192.0.2.1",9)); print("REACHED")
except OSError as e: print("REFUSED", e.errno)`

// With the canary off too, the second layer of each resource still refuses.
func TestSecondLayerHolds(t *testing.T) {
	bin := seamBinary(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("SECRET"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(secret), 0o755); err != nil {
		t.Fatal(err)
	}
	mount := `import ctypes,os
l=ctypes.CDLL(None,use_errno=True)
r=l.mount(b"none",b"/tmp",b"tmpfs",0,None)
print("MOUNTED" if r==0 else "REFUSED %d" % ctypes.get_errno())`
	for _, c := range []struct {
		off  string
		argv []string
		want string
	}{
		{"mount", []string{"/bin/cat", secret}, "Permission denied"},             // Landlock
		{"landlock", []string{"/bin/cat", secret}, "No such file"},               // the view
		{"seccomp", []string{"/usr/bin/python3", "-c", mount}, "REFUSED 1\n"},    // no capability
		{"caps", []string{"/usr/bin/python3", "-c", mount}, "REFUSED 1\n"},       // seccomp
		{"netns", []string{"/usr/bin/python3", "-c", connectOut}, "REFUSED 1\n"}, // cgroup program
		{"bpf", []string{"/usr/bin/python3", "-c", connectOut}, "REFUSED 101\n"}, // no route
	} {
		t.Run(c.off, func(t *testing.T) {
			out, _ := seamExec(t, bin, c.off+",canary", c.argv...)
			if !strings.Contains(out, c.want) || strings.Contains(out, "SECRET") {
				t.Errorf("output %q, want %q", out, c.want)
			}
		})
	}
}
