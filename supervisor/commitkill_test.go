package supervisor_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
)

// A commit that is killed before any of its acts is undone or finished by the next
// one. The change set is untouched.
func TestCommitKilledAnywhere(t *testing.T) {
	bin := testenv.SeamBinary(t)
	dir := t.TempDir()
	ws, state := filepath.Join(dir, "ws"), filepath.Join(dir, "state")
	shell(t, dir, `mkdir -p ws/dir/sub ws/gone ws/was; echo old >ws/file; echo leaf >ws/dir/sub/leaf; echo x >ws/gone/x; echo y >ws/was/y
		echo same >ws/same; ln -s file ws/link; mkfifo ws/pipe; chmod 640 ws/file; cp -a ws before`)
	exe(t, bin, "exec", "-q", "--state", state, "-w", ws, "--", "sh", "-c",
		`set -e; echo more >>file; mv dir moved; echo n >moved/sub/n; rm -r gone; mkdir gone; echo z >gone/z; rm -r was; echo file >was; mkdir -p new/deep; ln file hard
		ln -s nowhere link2; rm link; echo link >link; chmod 600 same; rm pipe; printf x >"$(printf 'a\nb')"`)
	exe(t, bin, "commit", "-q", "--state", state)
	want := shell(t, dir, tree)
	shell(t, dir, "sha256sum $(find state/runs/*/changes -type f | sort) >set")
	stride := 1
	if testing.Short() { // the emulated machines, where each takes seconds
		stride = 17
	}
	for at := 0; ; at += stride {
		shell(t, dir, `find ws -mindepth 1 -delete; cp -a before/. ws; rm state/runs/*/commit.jsonl`)
		before := shell(t, dir, tree)
		cmd := exec.Command(bin, "commit", "-q", "--state", state)
		cmd.Env = append(os.Environ(), "AGENTGUARD_SEAM_KILL_COMMIT="+strconv.Itoa(at))
		out, err := cmd.CombinedOutput()
		if err == nil {
			if at < 20 {
				t.Errorf("the commit has %d acts only", at)
			}
			break
		}
		if !strings.Contains(string(out), "signal: killed") {
			t.Fatalf("act %d: %v %s", at, err, out)
		}
		shell(t, dir, "sha256sum -c --quiet set")
		if journal := shell(t, dir, "cat state/runs/*/commit.jsonl"); !strings.Contains(journal, `"ready"`) {
			if now := shell(t, dir, "rm -rf ws/.agentguard-commit-*; "+tree); now != before {
				t.Errorf("act %d: changed before it was ready:\n%s", at, now)
			}
		}
		exe(t, bin, "commit", "-q", "--state", state)
		if got := shell(t, dir, tree); got != want {
			t.Errorf("act %d, and then committed:\n%s\nwant\n%s", at, got, want)
		}
	}
}

// tree lists a workspace, but for the times of directories.
const tree = `cd ws && find . -printf '%p %y %m %u:%g %s %n %l\n' | sed 's/^\(.* d [0-9]* [^ ]*\) .*/\1/' | sort; find . -type f -exec sha256sum {} + | sort`

// shell runs a script in dir and returns what it says.
func shell(t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.Command("bash", "-euc", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

func exe(t *testing.T, bin string, args ...string) {
	t.Helper()
	if out, err := exec.Command(bin, args...).CombinedOutput(); err != nil {
		t.Fatalf("agentguard %s: %v\n%s", args, err, out)
	}
}
