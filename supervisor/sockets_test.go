package supervisor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/policy"
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
		{"unclean", head + row(" /run//x/../y"), []string{"/run//x/../y"}}, // resolved later
		{"abstract", head + row(" @/tmp/.X11"), nil},
		{"relative", head + row(" sock"), []string{"sock"}},
		{"two spaces", head + row(" /run/a  b"), []string{"/run/a  b"}},
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
		masks, err := maskSockets(view, []hostSocket{socketAt(view, c.socket)})
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
	var many []hostSocket
	for i := range maxMasks + 1 {
		many = append(many, socketAt(view, fmt.Sprintf("/opt/%d", i)))
	}
	if masks, err := maskSockets(view, many[1:]); err != nil || len(masks) != maxMasks {
		t.Errorf("%d masks, %v", len(masks), err)
	}
	_, err := maskSockets(view, many)
	if r := refusal(t, err); r.What != "the grants hold 129 unix sockets, more than 128" || r.Clause != "clause of /opt ro" || r.Remedy != "grant less" {
		t.Errorf("%+v", r)
	}
}

// socketAt is a socket of a host where the view's sources are directories.
func socketAt(view []Entry, name string) hostSocket {
	s := hostSocket{path: name}
	dir := ""
	for i, part := range append([]string{""}, split(path.Dir(name))...) {
		dir = path.Join("/", dir, part)
		id := devIno{1 << 40, uint64(i)}
		for _, e := range view {
			if e.From == dir {
				id = devIno{e.Dev, e.Ino}
			}
		}
		s.dirs = append(s.dirs, id)
	}
	return s
}

// A socket is found by where it lies, whatever name it was bound by.
func TestHostSocketsByAnyName(t *testing.T) {
	base := publicDir(t)
	must(t, os.Mkdir(base+"/real", 0o755), os.Symlink("real", base+"/link"))
	for _, name := range []string{base + "/link/linked.sock", base + "/real/../real/dotted.sock"} {
		l, err := net.Listen("unix", name)
		must(t, err)
		defer l.Close()
	}
	relative := exec.Command("/usr/bin/python3", "-c", "import socket,sys; s=socket.socket(socket.AF_UNIX); s.bind('relative.sock'); s.listen(); print(flush=True); sys.stdin.read()")
	relative.Dir = base + "/real"
	in, err := relative.StdinPipe()
	must(t, err)
	out, err := relative.StdoutPipe()
	must(t, err, relative.Start())
	defer func() { must(t, in.Close(), relative.Wait()) }()
	_, err = out.Read(make([]byte, 1))
	must(t, err)
	list, err := hostSockets()
	must(t, err)
	for _, want := range []string{"linked.sock", "dotted.sock", "relative.sock"} {
		if !slices.ContainsFunc(list, func(s hostSocket) bool { return s.path == base+"/real/"+want }) {
			t.Errorf("%s is not seen", want)
		}
	}
}

// The walk finds what /proc/net/unix does not tell: renamed and linked sockets.
func TestWalkSockets(t *testing.T) {
	base := publicDir(t)
	must(t, os.MkdirAll(base+"/ws/a/b", 0o755))
	l, err := net.Listen("unix", base+"/ws/a/first.sock")
	must(t, err)
	defer l.Close()
	must(t, os.Link(base+"/ws/a/first.sock", base+"/ws/a/b/linked.sock"), os.Rename(base+"/ws/a/first.sock", base+"/ws/moved\nsock"))
	g, err := openGrants(&policy.Policy{ReadOnly: []policy.Mount{mountAt(base+"/ws", 1)}}, Caller{UID: os.Getuid()}, nil)
	must(t, err)
	defer g.entries[0].open.File.Close()
	var rel []string
	for _, s := range g.sockets {
		rel = append(rel, s.rel)
	}
	slices.Sort(rel)
	if want := []string{"a/b/linked.sock", "moved\nsock"}; !slices.Equal(rel, want) || !g.walked {
		t.Errorf("%q, all %v, want %q", rel, g.walked, want)
	}
}

// Why nothing is looked for in copy-on-write grants: a socket of the layer below
// cannot be connected to through the overlay, whatever network namespace it is of.
func TestStagedSocketsLeadNowhere(t *testing.T) {
	testenv.Root(t)
	base := publicDir(t)
	must(t, errors.Join(os.MkdirAll(base+"/lower/dir", 0o755), os.Mkdir(base+"/upper", 0o755), os.Mkdir(base+"/work", 0o755)))
	l, err := net.Listen("unix", base+"/lower/dir/sock")
	must(t, err)
	defer l.Close()
	must(t, os.Link(base+"/lower/dir/sock", base+"/lower/linked"))
	mnt, err := newFS("overlay", 0, "lowerdir="+base+"/lower", "upperdir="+base+"/upper", "workdir="+base+"/work")
	must(t, err)
	defer mnt.Close()
	for _, name := range []string{"dir/sock", "linked"} {
		if c, err := net.Dial("unix", base+"/lower/"+name); err != nil {
			t.Errorf("%s of the host: %v", name, err)
		} else {
			c.Close()
		}
		through := fmt.Sprintf("/proc/self/fd/%d/%s", mnt.Fd(), name)
		for _, when := range []string{"as it was", "copied up"} {
			if _, err := net.Dial("unix", through); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s through the overlay, %s: %v", name, when, err)
			}
			must(t, os.Chmod(through, 0o777))
		}
	}
	g, err := openGrants(&policy.Policy{Cow: []policy.Mount{mountAt(base+"/lower", 1)}}, Caller{UID: os.Getuid()}, nil)
	must(t, err)
	defer g.entries[0].open.File.Close()
	for _, s := range g.sockets {
		if s.rel != "" {
			t.Errorf("%s was looked for", s.rel)
		}
	}
}
