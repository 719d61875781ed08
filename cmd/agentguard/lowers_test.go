package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
)

// lowers are file systems that a workspace may lie on. mount makes one at m; what
// it needs beyond the kernel is in needs. mapped says that root's files can be
// shown to a run's own user there, on every kernel that has it.
var lowers = []struct {
	name, needs, mount string
	mapped             bool
}{
	{"ext4", "mkfs.ext4", `truncate -s 64M img; mkfs.ext4 -q img; mount -o loop img m`, true},
	{"xfs", "mkfs.xfs", `truncate -s 400M img; mkfs.xfs -q img; mount -o loop img m`, true},
	{"btrfs", "mkfs.btrfs", `truncate -s 200M img; mkfs.btrfs -q img >/dev/null 2>&1; mount -o loop img m`, true},
	{"tmpfs", "mount", `mount -t tmpfs none m`, false}, // mapped from Linux 6.3 on
	{"overlay", "mount", `mkdir t; mount -t tmpfs none t; mkdir t/l t/u t/w; mount -t overlay none -o lowerdir=t/l,upperdir=t/u,workdir=t/w m`, false},
	// Without RENAME_EXCHANGE and RENAME_NOREPLACE: what a commit does instead.
	{"fuse", "bindfs", `mkdir src; bindfs src m`, false},
}

// What a lower must bear: run, diff, commit and discard, in a tree of a user's and
// in one of root's. Where root's files cannot be shown mapped, that is said.
const lowerScript = `
cd "$DIR"; mkdir m; ` + `eval "$MOUNT" || exit 77
trap 'cd /; umount "$DIR/m"' EXIT
for owner in 1234 0; do
	ws=m/ws$owner; mkdir -p $ws/dir/sub $ws/gone; echo old >$ws/file; echo leaf >$ws/dir/sub/leaf; echo x >$ws/gone/x; echo s >$ws/same
	chown -R $owner:$owner $ws; chmod -R u=rwX,go=rX $ws
	before=$(find $ws -printf '%p %y %m %U %s %T@\n' | sort)
	status=0
	"$BIN" exec --state st -w $ws -- sh -c 'set -e; echo more >>file; mv dir moved; echo n >moved/sub/n; rm -r gone; mkdir new; echo x >new/f; ln -s file link; chmod 600 same' 2>err || status=$?
	if [ $owner = 0 ] && [ $status != 0 ] && [ "$MAPPED" = false ]; then
		grep -q 'ws0: its file system cannot be shown with mapped user ids' err && echo said || cat err
		continue
	fi
	[ $status = 0 ] || { echo "owner $owner: $status"; cat err; }
	[ "$before" = "$(find $ws -printf '%p %y %m %U %s %T@\n' | sort)" ] || echo "the run changed the host's tree"
	"$BIN" diff --state st --name-status | sed 's/\t/ /g' | sort | tr '\n' ' '; echo
	"$BIN" discard --state st 2>/dev/null
	[ "$before" = "$(find $ws -printf '%p %y %m %U %s %T@\n' | sort)" ] || echo "discard changed the host's tree"
	"$BIN" exec -q --state st -w $ws --commit success -- sh -c 'echo more >>file; mv dir moved; echo n >moved/sub/n; rm -r gone; mkdir new; echo x >new/f; ln -s file link; chmod 600 same'
	(cd $ws; find . | sort | tr '\n' ' '; cat file link moved/sub/leaf new/f | tr '\n' ' '; stat -c %u:%a file same new/f | tr '\n' ' '; echo)
done
`

func TestLowers(t *testing.T) {
	testenv.Root(t)
	for _, l := range lowers {
		t.Run(l.name, func(t *testing.T) {
			if _, err := exec.LookPath(l.needs); err != nil {
				testenv.Beyond(t, l.name, err.Error())
			}
			out := inLower(t, lowerScript, "MOUNT="+l.mount, "MAPPED="+map[bool]string{true: "true", false: "false"}[l.mapped])
			want := func(owner string) string {
				return "A link A moved/sub/n A new A new/f D gone D gone/x M file M same R dir moved \n" +
					". ./file ./link ./moved ./moved/sub ./moved/sub/leaf ./moved/sub/n ./new ./new/f ./same old more old more leaf x " +
					owner + ":644 " + owner + ":600 " + owner + ":644 \n"
			}
			if out == want("1234")+"said\n" && !l.mapped {
				return
			}
			if out != want("1234")+want("0") {
				t.Errorf("%s", out)
			}
		})
	}
}

// inLower runs a script in a directory and a mount namespace of its own. 77 is a
// file system that this kernel does not have.
func inLower(t *testing.T, script string, env ...string) string {
	t.Helper()
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "bash", "-euc", script)
	cmd.Env = append(append(os.Environ(), "DIR="+t.TempDir(), "BIN="+agentguard(), "LC_ALL=C"), env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 77 {
		testenv.Beyond(t, strings.ToLower(t.Name()), string(out))
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// No rename leads from one subvolume of btrfs to another, so a commit from the top
// of the tree cannot replace or delete there. It says so before it changes anything.
func TestSubvolume(t *testing.T) {
	testenv.Root(t)
	if _, err := exec.LookPath("mkfs.btrfs"); err != nil {
		testenv.Beyond(t, "btrfs", err.Error())
	}
	const script = `
cd "$DIR"; mkdir m; ` + `eval "$MOUNT" || exit 77
trap 'cd /; umount "$DIR/m"' EXIT
mkdir m/ws; btrfs subvolume create m/ws/sub >/dev/null; echo old >m/ws/sub/f; echo old >m/ws/f
"$BIN" exec -q --state st -w m/ws -- sh -c 'echo new >sub/f; rm f; echo x >y'
"$BIN" commit --state st 2>err && echo "no error"
grep -o 'another file system or subvolume than .*: --cow' err || cat err
ls -A m/ws; cat m/ws/f
"$BIN" commit -q --state st last m/ws/f m/ws/y; ls -A m/ws
"$BIN" exec -q --state st -w m/ws --cow m/ws/sub --commit success -- sh -c 'echo new >sub/f; rm y'; ls -A m/ws; cat m/ws/sub/f`
	const want = "another file system or subvolume than the top of the tree: name other paths, or stage it by itself: --cow\nf\nsub\nold\nsub\ny\nsub\nnew\n"
	if out := inLower(t, script, "MOUNT=truncate -s 200M img; mkfs.btrfs -q img >/dev/null 2>&1; mount -o loop img m"); out != want {
		t.Errorf("%s", out)
	}
}

// Who supervises a run is found on btrfs too, where stat(2) and proc_locks(5) number a file system differently.
func TestSupervisorOnBtrfs(t *testing.T) {
	testenv.Root(t)
	if _, err := exec.LookPath("mkfs.btrfs"); err != nil {
		testenv.Beyond(t, "btrfs", err.Error())
	}
	const script = `
cd "$DIR"; mkdir m ws; ` + `eval "$MOUNT" || exit 77
trap 'cd /; umount "$DIR/m"' EXIT
"$BIN" exec -q --state m/st -w ws -- sh -c 'echo runs; exec sleep 1000' >out & agentguard=$!
until grep -qs runs out; do sleep 0.01; done
[ "$("$BIN" ps --json --state m/st | grep -o '"pid":[0-9]*')" = "\"pid\":$agentguard" ] || "$BIN" ps --state m/st
"$BIN" runs kill --state m/st last
status=0; wait $agentguard || status=$?; echo $status`
	if out := inLower(t, script, "MOUNT=truncate -s 200M img; mkfs.btrfs -q img >/dev/null 2>&1; mount -o loop img m"); out != "143\n" {
		t.Errorf("%s", out)
	}
}
