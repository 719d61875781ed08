package supervisor

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/agentguard/agentguard/internal/mountinfo"
	"github.com/agentguard/agentguard/internal/testenv"
)

func TestOutside(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"file": 0o644, "prog": 0o755} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"near": "file", "proc": "/proc/self/status", "gone": "nothing"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	ask := Caller{UID: os.Getuid(), GID: os.Getgid()}.Outside(time.Minute)
	for path, want := range map[string]string{
		dir: "a directory", dir + "/file": "a file", dir + "/prog": "a program", dir + "/near": "a file", "/": "a directory",
		dir + "/none": "", dir + "/gone": "", dir + "/proc": "", "/proc/self/status": "", "file": "", "": "",
	} {
		if got := ask(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if got := (Caller{UID: os.Getuid()}).Outside(0)(dir + "/file"); got != "" && got != "a file" {
		t.Errorf("without time: %q", got)
	}
}

// TestOutsideAsTheCaller looks for what root can see and the caller cannot.
func TestOutsideAsTheCaller(t *testing.T) {
	testenv.Root(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	nobody := Caller{UID: 65534, GID: 65534, Sudo: true}.Outside(time.Minute)
	if got := nobody(dir + "/file"); got != "" {
		t.Errorf("the caller is told of %q", got)
	}
	if got := nobody("/etc/passwd"); got != "a file" {
		t.Errorf("/etc/passwd: %q", got)
	}
}

func TestLocalMount(t *testing.T) {
	mounts := slices.Collect(mountinfo.All([]byte(`1 0 8:1 / / rw - ext4 /dev/sda rw
2 1 0:1 / /home rw - nfs4 server:/home rw
3 2 8:2 / /home/me rw - ext4 /dev/sdb rw
4 1 8:3 / /srv\040x rw - xfs /dev/sdc rw
5 1 0:2 / /net rw - autofs map rw
6 1 8:4 / /mnt rw - ext4 /dev/sdd rw
7 6 0:3 / /mnt rw - fuse.sshfs host: rw
`)))
	for path, want := range map[string]string{
		"/etc/passwd": "/", "/home": "", "/home/me/x": "", "/homes": "/", "/srv x/y": "/srv x", "/net/a": "", "/mnt/x": "",
	} {
		if got, ok := localMount(mounts, path); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %t", path, got, ok)
		}
	}
}
