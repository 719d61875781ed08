package supervisor

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseSockets(t *testing.T) {
	const head = "Num       RefCount Protocol Flags    Type St Inode Path\n"
	row := func(p string) string { return "ffff888: 00000002 00000000 00010000 0001 01 12345" + p + "\n" }
	for _, c := range []struct {
		name, in string
		want     []string
	}{
		{"empty", head, nil},
		{"unnamed", head + row(""), nil},
		{"pathname", head + row(" /run/x.sock"), []string{"/run/x.sock"}},
		{"with spaces", head + row(" /run/a b /c.sock"), []string{"/run/a b /c.sock"}},
		{"unclean", head + row(" /run//x/../y"), []string{"/run/y"}},
		{"abstract", head + row(" @/tmp/.X11"), nil},
		{"relative", head + row(" sock"), nil},
		{"each once", head + row(" /a") + row(" /b") + row(" /a"), []string{"/a", "/b"}},
	} {
		got, err := parseSockets(strings.NewReader(c.in))
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v, want %q", c.name, got, err, c.want)
		}
	}
}

func TestMaskSockets(t *testing.T) {
	dirGrant := func(s string) Entry {
		e := grant(s)
		e.open = &Opened{Stat: unix.Stat_t{Mode: unix.S_IFDIR}}
		return e
	}
	file := grant("/srv/file ro")
	file.open = &Opened{Stat: unix.Stat_t{Mode: unix.S_IFREG}}
	system := dirGrant("/usr ro")
	system.system = true
	view := []Entry{dirGrant("/home/u:/ws rw"), dirGrant("/home/u/sub:/ws/sub ro"), dirGrant("/opt ro"), file, system}
	for _, c := range []struct {
		socket string
		want   []string // "AT FROM"
	}{
		{"/run/docker.sock", nil},
		{"/opt/x.sock", []string{"/opt/x.sock /opt/x.sock"}},
		{"/optional/x.sock", nil},
		{"/home/u/a/b.sock", []string{"/ws/a/b.sock /home/u/a/b.sock"}},
		{"/home/u/sub/c.sock", []string{"/ws/sub/c.sock /home/u/sub/c.sock"}}, // one mask, where it is seen
		{"/srv/file", nil},
		{"/usr/x.sock", nil},
	} {
		masks, err := maskSockets(view, []string{c.socket})
		must(t, err)
		var got []string
		for _, m := range masks {
			got = append(got, m.At+" "+m.From)
			if m.Op != "mask" || m.open == nil || !m.system || m.Access != "" || m.mounted() {
				t.Errorf("%+v", m)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.socket, got, c.want)
		}
	}
	var many []string
	for i := range maxMasks + 1 {
		many = append(many, fmt.Sprintf("/opt/%d", i))
	}
	if masks, err := maskSockets(view, many[1:]); err != nil || len(masks) != maxMasks {
		t.Errorf("%d masks, %v", len(masks), err)
	}
	_, err := maskSockets(view, many)
	if r := refusal(t, err); r.What != "the grants hold 129 unix sockets, more than 128" || r.Clause != "clause of /opt ro" || r.Remedy != "grant less" {
		t.Errorf("%+v", r)
	}
}
