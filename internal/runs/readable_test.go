package runs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// All of a state directory can be read then, by whoever comes to it by a descriptor; what
// a link in it leads to stays as it is.
func TestLetRead(t *testing.T) {
	above := t.TempDir()
	dir, outside := filepath.Join(above, "state"), filepath.Join(t.TempDir(), "outside")
	deep := filepath.Join(dir, "runs", "id", "code")
	file, link := filepath.Join(deep, "file"), filepath.Join(deep, "link")
	if err := errors.Join(os.Chmod(above, 0o700), os.MkdirAll(deep, 0o700), os.WriteFile(file, []byte("x"), 0o600),
		os.WriteFile(outside, nil, 0o600), os.Symlink(outside, link)); err != nil {
		t.Fatal(err)
	}
	s, err := OpenState(dir, os.Getuid())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Readable() {
		t.Error("before")
	}
	if err := s.LetRead(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{dir: 0o755, deep: 0o755, file: 0o644, outside: 0o600, above: 0o700} {
		if st, err := os.Stat(name); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", name, st.Mode(), err, want)
		}
	}
	if !s.Readable() {
		t.Error("not after it")
	}
	if err := os.Chmod(above, 0o711); err != nil {
		t.Fatal(err)
	}
	if s.Readable() || s.LetRead() == nil {
		t.Error("somebody else can come near, and it is readable")
	}
}
