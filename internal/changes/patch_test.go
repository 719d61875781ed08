package changes

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentguard/agentguard/internal/testenv"
)

// A patch, applied by git to a copy of the tree as it was, makes the files that
// the run made: contents, links and executable bits.
func TestPatchApplies(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		testenv.Missing(t, "git", err.Error())
	}
	for i := range rounds(t, 15, 4) {
		c := newPlainCase(t, uint64(5000+i))
		set := c.pack(t)
		var patch bytes.Buffer
		p := &Patcher{Set: set, Lower: func(root string) (*os.File, error) { return os.Open(root) }}
		must(t, p.Write(&patch, set.Changes(nil, nil)))
		if patch.Len() == 0 {
			continue
		}
		cmd := exec.Command("git", "apply", "--whitespace=nowarn", "-")
		cmd.Dir, cmd.Stdin = c.base, bytes.NewReader(patch.Bytes())
		cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES=/")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("seed %d: git apply: %v\n%s\nafter\n%s\n%s", 5000+i, err, out, c.log(), patch.Bytes())
		}
		if len(p.Held) > 0 { // git cannot remove what it does not know
			if !strings.Contains(p.Held[0], "empty ones") {
				t.Errorf("seed %d: %q", 5000+i, p.Held)
			}
			continue
		}
		if want, got := gitListing(t, c.native), gitListing(t, c.base); !cmp.Equal(want, got) {
			t.Fatalf("seed %d, after\n%s\n%s\n%s", 5000+i, c.log(), cmp.Diff(want, got), patch.Bytes())
		}
	}
}
