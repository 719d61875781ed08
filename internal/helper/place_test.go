package helper

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
)

// A helper takes the place of a socket that was left, and of nothing else.
func TestListenPlace(t *testing.T) {
	testenv.Root(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: at("left"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	live, err := net.Listen("unix", at("live"))
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	for name, mode := range map[string]os.FileMode{"open": 0o777, "group": 0o775} {
		if err := os.Mkdir(at(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(at(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(at("file"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"left": "", "new": "", "live": "somebody listens at ", "file": "is no socket", "group": "is no socket",
		"open/s": "is not a directory that only root can write", "group/s": "is not a directory that only root can write", "none/s": "no such file or directory", "file/s": "is not a directory that only root can write",
	} {
		l, err := Listen(at(name), 0o600, 0)
		if err == nil {
			err = l.Close()
			if want != "" {
				t.Errorf("%s: it listens", name)
			}
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if b, err := os.ReadFile(at("file")); err != nil || string(b) != "kept" {
		t.Errorf("the file: %q, %v", b, err)
	}
	if c, err := net.Dial("unix", at("live")); err != nil {
		t.Errorf("the other helper: %v", err)
	} else if err := c.Close(); err != nil {
		t.Error(err)
	}
}
