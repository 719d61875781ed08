package mountinfo

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAll(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want []Mount
	}{
		"with and without tags": {
			"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,errors=remount-ro\n31 27 0:28 /a /sys/fs/cgroup ro,noexec shared:9 master:1 - cgroup2 none rw,nsdelegate\n",
			[]Mount{
				{ID: 27, Parent: 1, Major: 254, Root: "/", Point: "/", Options: "rw,relatime", Kind: "ext4", Source: "/dev/vda", Super: "rw,errors=remount-ro"},
				{ID: 31, Parent: 27, Minor: 28, Root: "/a", Point: "/sys/fs/cgroup", Options: "ro,noexec", Kind: "cgroup2", Source: "none", Super: "rw,nsdelegate"},
			},
		},
		"no end of line, and no source": {
			"1 1 0:1 / / rw - tmpfs  rw",
			[]Mount{{ID: 1, Parent: 1, Minor: 1, Root: "/", Point: "/", Options: "rw", Kind: "tmpfs", Super: "rw"}},
		},
		"escapes": {
			`60 23 0:60 /\134 /a\040-\040b\134040\043\011\012\7\0x\400 rw - fuse.\040x host\040- rw` + "\n",
			[]Mount{{ID: 60, Parent: 23, Minor: 60, Root: `/\`, Point: "/a - b\\040#\t\n\\7\\0x\\400", Options: "rw", Kind: "fuse. x", Source: "host -", Super: "rw"}},
		},
		"any bytes": {
			"5 1 0:1 / /\xff\x1b[2J rw - tmpfs \x00 rw\n",
			[]Mount{{ID: 5, Parent: 1, Minor: 1, Root: "/", Point: "/\xff\x1b[2J", Options: "rw", Kind: "tmpfs", Source: "\x00", Super: "rw"}},
		},
		"lines that no kernel writes": {
			strings.Repeat("x", 2<<20) + "\nx 1 0:1 / / rw - tmpfs t rw\n-1 1 0:1 / / rw - tmpfs t rw\n1 x 0:1 / / rw - tmpfs t rw\n1 1 0:1 / - tmpfs t rw\n" +
				"1 1 0:1 / / rw tmpfs t rw\n1 1 0:1 / / rw - tmpfs t\n1 1 0 / / rw - tmpfs t rw\n1 1 0:4294967296 / / rw - tmpfs t rw\n \n - \n\n", nil,
		},
	} {
		if d := cmp.Diff(c.want, slices.Collect(All([]byte(c.in)))); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestHas(t *testing.T) {
	m := Mount{Options: "ro,noexec"}
	if !m.Has("ro") || !m.Has("noexec") || m.Has("exec") || m.Has("r") {
		t.Error(m.Options)
	}
}

func FuzzAll(f *testing.F) {
	f.Add([]byte("27 1 254:0 / / rw - ext4 /dev/vda rw\n"))
	f.Add([]byte(`60 23 0:60 / /tmp/a\040-\040cgroup2\040x\040y rw shared:1 - tmpfs - rw`))
	f.Fuzz(func(t *testing.T, text []byte) {
		n := 0
		for m := range All(text) {
			n++
			if size := len(m.Root) + len(m.Point) + len(m.Options) + len(m.Kind) + len(m.Source) + len(m.Super); size > len(text) {
				t.Errorf("%d bytes of names out of %d", size, len(text))
			}
		}
		if n > strings.Count(string(text), " - ") {
			t.Errorf("%d mounts", n)
		}
	})
}
