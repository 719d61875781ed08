package supervisor

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTmpfsLimit(t *testing.T) {
	for n, want := range map[int64]string{-1: "0", 0: "1", 1: "1", 1 << 40: "1099511627776"} { // tmpfs takes 0 for no limit
		if got := tmpfsLimit(n); got != want {
			t.Errorf("%d is written %q", n, got)
		}
	}
}

func TestMkdirAtFollowsNothing(t *testing.T) {
	base := t.TempDir()
	must(t, os.Symlink("/etc", base+"/link"), os.WriteFile(base+"/file", nil, 0o600))
	d, err := os.Open(base)
	must(t, err)
	defer d.Close()
	for _, name := range []string{"link", "file"} {
		if f, err := mkdirAt(d, name, 0o755); err == nil {
			t.Errorf("%s was opened as a directory", name)
			f.Close()
		}
	}
	if err := writeFileAt(int(d.Fd()), "link", "x", 0o600); !errors.Is(err, unix.EEXIST) {
		t.Errorf("a file over a link: %v", err)
	}
	old := unix.Umask(0o077)
	f, err := mkdirAt(d, "new", 0o1777)
	unix.Umask(old)
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &st), f.Close())
	if st.Mode&0o7777 != 0o1777 {
		t.Errorf("mode %o", st.Mode)
	}
}
