package supervisor_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
)

// seamExec runs a command with layers switched off; the workspace and the state
// are private to the test.
func seamExec(t *testing.T, bin, off string, argv ...string) (out string, status int) {
	t.Helper()
	return seamExecWith(t, bin, off, nil, argv...)
}

func seamExecWith(t *testing.T, bin, off string, flags []string, argv ...string) (out string, status int) {
	t.Helper()
	ws := t.TempDir()
	args := append([]string{"exec", "--state", filepath.Join(t.TempDir(), "state"), "-w", ws}, flags...)
	cmd := exec.Command(bin, append(append(args, "--"), argv...)...)
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
	bin := testenv.SeamBinary(t)
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
	bin := testenv.SeamBinary(t)
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

// An allowlist is kept by two layers: the edge of the network namespace with its
// relay, and the cgroup programs. With either off, the other refuses what is not
// allowed; with the edge off, the canary says so.
func TestAllowlistHasTwoLayers(t *testing.T) {
	bin := testenv.SeamBinary(t)
	flags := []string{"--allow", "api.example.com:8443", "--allow", "192.0.2.1:8443", "--resolve", "api.example.com=127.0.0.1"}
	if out, status := seamExecWith(t, bin, "edge", flags, "/bin/echo", "RAN"); status != 125 || !strings.Contains(out, "the edge of the network namespace") {
		t.Errorf("without the edge: status %d, output %q", status, out)
	}
	const try = `import socket
def tcp(a, p):
    s = socket.socket(); s.settimeout(30)
    try: s.connect((a, p)); return "connected" if s.recv(9) else "reset"
    except OSError as e: return e.errno
own = socket.socket(); own.bind(("0.0.0.0", 9000)); own.listen(1)
a = socket.gethostbyname("api.example.com") if %s else "198.18.0.16"
print(tcp(a, 9000), tcp("198.18.0.99", 8443), tcp("192.0.2.1", 80), tcp("203.0.113.1", 8443))`
	for _, c := range []struct {
		off      string
		resolver bool
		want     string
	}{
		{"", true, "1 1 1 1"},            // the cgroup programs say it first
		{"bpf", true, "111 111 111 101"}, // the edge refuses; no route to the last
		{"edge", true, "1 1 1 1"},        // the programs refuse
		{"netns", false, "1 1 1 1"},      // likewise, in the host's namespace
	} {
		out, _ := seamExecWith(t, bin, strings.TrimPrefix(c.off+",canary", ","), flags, "/usr/bin/python3", "-c", fmt.Sprintf(try, map[bool]string{true: "True", false: "False"}[c.resolver]))
		if first, _, _ := strings.Cut(out, "\n"); first != c.want {
			t.Errorf("without %q: %q, want %q", c.off, out, c.want)
		}
	}
}
