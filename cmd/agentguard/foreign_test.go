package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/internal/testenv"
)

// Where the mount namespace of the first run is not that of others, such as a service with
// PrivateTmp=yes, they do not see its programs; each of the two runs below programs of its own.
func TestPinsOfAnotherMountNamespace(t *testing.T) {
	testenv.Root(t)
	layout, err := cgroup.Detect()
	if err != nil {
		t.Fatal(err)
	}
	const script = `umount /run/agentguard/bpf
for i in 1 2; do "$BIN" exec -q --state "$DIR/st" --mode ro -w /usr -- bash -c '(: >/dev/tcp/127.0.0.1/9) 2>&1 | grep -om1 "Connection refused"'; done
"$BIN" runs ls --state "$DIR/st" --json | grep -o '"verdict":"[a-z]*"'; readlink /proc/self/ns/mnt`
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "bash", "-euc", script)
	cmd.Env = append(os.Environ(), "DIR="+t.TempDir(), "BIN="+agentguard())
	out, err := cmd.CombinedOutput()
	said, namespace, _ := strings.Cut(strings.TrimSpace(string(out)), "mnt:")
	if want := strings.Repeat("Connection refused\n", 2) + strings.Repeat(`"verdict":"complete"`+"\n", 2); err != nil || said != want {
		t.Errorf("%v\n%s", err, out)
	}
	// Nobody uses the parent any more; a sweep would remove it in an hour.
	parent := fmt.Sprintf("%s-%.4x", cgroup.DefaultParent, sha256.Sum256([]byte(bpf.Build()+"mnt:"+namespace)))
	for _, root := range []string{layout.Unified, layout.V1[cgroup.Memory], layout.V1[cgroup.Pids]} {
		if root == "" {
			continue
		}
		if err := os.Remove(filepath.Join(root, parent)); err != nil {
			t.Error(err)
		}
	}
}
