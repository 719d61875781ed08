package seccomp

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
)

// The committed tables are what the generator writes.
func TestTablesAreGenerated(t *testing.T) {
	if out, err := exec.Command("go", "list", "-C", "gen", "-deps", ".").CombinedOutput(); err != nil {
		testenv.Missing(t, "modules", "the generator's cannot be had: "+string(out))
	}
	dir := t.TempDir()
	if out, err := exec.Command("go", "run", "-C", "gen", ".", dir).CombinedOutput(); err != nil {
		t.Fatalf("gen: %v\n%s", err, out)
	}
	for _, name := range []string{"table_x86_64.go", "table_aarch64.go"} {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the generator writes: go generate", name)
		}
	}
}
