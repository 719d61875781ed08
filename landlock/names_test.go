package landlock

import "testing"

func TestNames(t *testing.T) {
	for _, c := range []struct {
		kind   string
		rights uint32
		want   string
		dir    bool
	}{
		{"fs", 0, "", false},
		{"fs", 1<<2 | 1, "fs.execute,fs.read_file", false},
		{"fs", 1<<13 | 1<<8, "fs.make_reg,fs.refer", true},
		{"fs", 1 << 31, "fs.bit_31", false},
		{"net", 1 << 1, "net.connect_tcp", false},
	} {
		if got := Names(c.kind, c.rights); got != c.want || OfDirectory(c.rights) != c.dir {
			t.Errorf("%s %#x: %q, %v", c.kind, c.rights, got, OfDirectory(c.rights))
		}
	}
}
