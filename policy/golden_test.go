package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
)

// host is the context of every golden file.
var host = Context{MemTotal: 8 << 30, Cwd: "/srv/here"}

// load parses a file as if it lay in /policies and merges it over the defaults.
func load(name string, src []byte) (*Policy, error) {
	f, err := Parse("/policies/"+name, src)
	if err != nil {
		return nil, err
	}
	return Merge(Defaults(host), f)
}

// golden compares got with the file beside path, which is below testdata.
func golden(t *testing.T, path, got string) {
	t.Helper()
	testenv.Golden(t, strings.TrimSuffix(strings.TrimPrefix(path, "testdata/"), ".yaml")+".golden", []byte(got))
}

func inputs(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", dir, "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no files in testdata/%s: %v", dir, err)
	}
	files := map[string][]byte{}
	for _, path := range paths {
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files[path] = src
	}
	return files
}

// Every file in testdata/errors is refused, with exactly these messages.
func TestErrors(t *testing.T) {
	for path, src := range inputs(t, "errors") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			_, err := load(filepath.Base(path), src)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, line := range strings.Split(err.Error(), "\n") {
				if printable(line) != line || !strings.HasPrefix(line, "/policies/") {
					t.Errorf("a message without its place, or not printable: %q", line)
				}
			}
			golden(t, path, err.Error()+"\n")
		})
	}
}

// Every file in testdata/valid is accepted and means exactly this.
func TestValid(t *testing.T) {
	for path, src := range inputs(t, "valid") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			p, err := load(filepath.Base(path), src)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			for _, c := range p.Clauses() {
				if c.Source.IsDefault() {
					continue
				}
				fmt.Fprintf(&b, "%s = %s  # %s\n", c.Key, c.Value, c.Source)
			}
			for _, g := range p.Gaps() {
				fmt.Fprintf(&b, "gap %s (%s): %s; %s\n", g.Clause, g.Source, g.Missing, g.Remedy)
			}
			fmt.Fprintf(&b, "workspace %q %s\n", p.Workspace.Path, p.Workspace.Mode)
			golden(t, path, b.String())
		})
	}
}
