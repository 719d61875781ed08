package supervisor

import (
	"slices"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/landlock"
)

// grant is a bind of FROM at AT, written "FROM:AT ACCESS"; its inode is the sum of FROM.
func grant(s string) Entry {
	where, access, _ := strings.Cut(s, " ")
	from, at, ok := strings.Cut(where, ":")
	if !ok {
		at = from
	}
	var ino uint64
	for _, c := range []byte(from) {
		ino = ino*31 + uint64(c)
	}
	return Entry{Op: "bind", At: at, From: from, Access: access, Dev: 1, Ino: ino, Clause: "clause of " + s}
}

func grantsOf(list ...string) []Entry {
	var out []Entry
	for _, s := range list {
		out = append(out, grant(s))
	}
	return out
}

// shape lists a view as "AT OP ACCESS".
func shape(view []Entry) []string {
	var out []string
	for _, e := range view {
		out = append(out, strings.TrimRight(e.At+" "+e.Op+" "+e.Access, " "))
	}
	return out
}

var smallBase = []Entry{
	{Op: "bind", At: "/usr", From: "/usr", Access: "ro", system: true},
	{Op: "file", At: "/etc/hosts", Access: "plain", system: true},
	{Op: "symlink", At: "/bin", From: "usr/bin", system: true},
	{Op: "scratch", At: "/tmp", From: "tmp", Access: "rw", system: true},
	{Op: "scratch", At: "/dev/shm", From: "shm", Access: "rw", system: true},
	{Op: "device", At: "/dev/null", Access: "device", system: true},
	{Op: "proc", At: "/proc", Access: "proc", system: true},
	{Op: "bind", At: "/sys/devices/system/cpu", Access: "plain", system: true},
}

func TestMergeView(t *testing.T) {
	all := "/bin symlink|/dev/null device device|/dev/shm scratch rw|/etc/hosts file plain|/proc proc proc|/sys/devices/system/cpu bind plain|/tmp scratch rw|/usr bind ro"
	for _, c := range []struct {
		name   string
		grants []string
		want   string // "" stands for the base alone; "+X" adds
		err    string
	}{
		{name: "no grant", want: all},
		{name: "beside", grants: []string{"/srv ro"}, want: strings.Replace(all, "/sys", "/srv bind ro|/sys", 1)},
		{name: "over a part of the base", grants: []string{"/usr rw"}, want: strings.Replace(all, "/usr bind ro", "/usr bind rw", 1)},
		{name: "above a part of the base", grants: []string{"/etc ro"}, want: strings.Replace(all, "/etc/hosts file plain", "/etc bind ro", 1)},
		{name: "below a part of the base", grants: []string{"/usr/local rw"}, want: all + "|/usr/local bind rw"},
		{name: "a sibling that begins alike", grants: []string{"/usrlocal rw", "/tmpfiles ro"}, want: strings.Replace(all, "/usr bind ro", "/tmpfiles bind ro|/usr bind ro|/usrlocal bind rw", 1)},
		{name: "over scratch", grants: []string{"/tmp ro"}, want: strings.Replace(all, "/tmp scratch rw", "/tmp bind ro", 1)},
		{name: "over /dev/shm", grants: []string{"/x:/dev/shm rw"}, want: strings.Replace(all, "/dev/shm scratch rw", "/dev/shm bind rw", 1)},
		{name: "below /dev/shm", grants: []string{"/x:/dev/shm/x rw"}, want: strings.Replace(all, "/dev/shm scratch rw", "/dev/shm scratch rw|/dev/shm/x bind rw", 1)},
		{name: "nested, child first", grants: []string{"/srv/a/b rw", "/srv ro", "/srv/a-b ro"}, want: strings.Replace(all, "/sys", "/srv bind ro|/srv/a-b bind ro|/srv/a/b bind rw|/sys", 1)},
		{name: "twice", grants: []string{"/srv ro", "/srv ro"}, want: strings.Replace(all, "/sys", "/srv bind ro|/sys", 1)},
		{name: "ro, then rw", grants: []string{"/srv ro", "/srv rw"}, want: strings.Replace(all, "/sys", "/srv bind rw|/sys", 1)},
		{name: "rw, then ro: the wider holds", grants: []string{"/srv rw", "/srv ro"}, want: strings.Replace(all, "/sys", "/srv bind rw|/sys", 1)},
		{name: "one path at two places", grants: []string{"/srv ro", "/srv:/srv2 rw"}, want: strings.Replace(all, "/sys", "/srv bind ro|/srv2 bind rw|/sys", 1)},
		{name: "two paths at one place", grants: []string{"/a:/srv ro", "/b:/srv ro"}, err: "two different paths are granted at /srv: /a and /b [clause of /b:/srv ro]; give one of them another place with PATH:AT"},
		{name: "/proc", grants: []string{"/x:/proc ro"}, err: "/proc cannot be granted: /proc inside is the run's own [clause of /x:/proc ro]; remove it, or give it another place with PATH:AT"},
		{name: "below /proc", grants: []string{"/x:/proc/sys/kernel ro"}, err: "/proc/sys/kernel cannot be granted: /proc inside"},
		{name: "/dev", grants: []string{"/dev ro"}, err: "/dev cannot be granted"},
		{name: "/dev/shmem", grants: []string{"/dev/shmem ro"}, err: "/dev/shmem cannot be granted"},
		{name: "/sys", grants: []string{"/sys/fs/cgroup ro"}, err: "/sys/fs/cgroup cannot be granted"},
		{name: "/", grants: []string{"/ ro"}, err: "the whole host cannot be granted [clause of / ro]; name the directories that the command needs"},
		{name: "anything at /", grants: []string{"/srv:/ ro"}, err: "the whole host cannot be granted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			grants := grantsOf(c.grants...)
			given := slices.Clone(grants)
			view, err := mergeView(smallBase, grants)
			if c.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), c.err) {
					t.Errorf("error %v, want %s", err, c.err)
				}
				return
			}
			if got := strings.Join(shape(view), "|"); err != nil || got != c.want {
				t.Errorf("%v\ngot  %s\nwant %s", err, got, c.want)
			}
			if !slices.EqualFunc(grants, given, func(a, b Entry) bool { return a.At == b.At && a.Access == b.Access }) {
				t.Error("the grants were changed")
			}
		})
	}
}

// Whatever the order of grants, a parent comes before what is mounted in it,
// no place is mounted twice, and the kernel's file systems are there.
func TestMergeViewOrder(t *testing.T) {
	list := []string{"/a ro", "/a/b rw", "/a/b/c ro", "/a.b ro", "/a/b-c rw", "/usr/x ro", "/etc ro", "/etc/hosts ro"}
	var first []string
	for range 20 {
		view, err := mergeView(baseView(nil, nil, map[string]string{"/bin": "usr/bin"}, Identity{UID: 5, GID: 6}, false), grantsOf(list...))
		must(t, err)
		got := shape(view)
		if first == nil {
			first = got
		} else if !slices.Equal(got, first) {
			t.Fatalf("not one order:\n%v\n%v", got, first)
		}
		seen := map[string]int{}
		for i, e := range view {
			if j, twice := seen[e.At]; twice {
				t.Errorf("%s is there twice: %+v, %+v", e.At, view[j], e)
			}
			seen[e.At] = i
			if h := holder(view, e.At); h != nil && seen[h.At] >= i && h.At != e.At {
				t.Errorf("%s comes before %s", e.At, h.At)
			}
		}
		for _, must := range []string{"/proc", "/dev/null", "/dev/pts", "/sys/fs/cgroup", "/tmp", Home} {
			if _, ok := seen[must]; !ok {
				t.Errorf("no %s", must)
			}
		}
		last := list[0]
		list = append(list[1:], last)
	}
}

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		p, dir string
		want   bool
	}{
		{"/a", "/a", true},
		{"/a/b", "/a", true},
		{"/ab", "/a", false},
		{"/a", "/a/b", false},
		{"/", "/", true},
		{"/x", "/", true},
		{"/", "/x", false},
		{"/a//", "/a", true},
	} {
		if got := within(c.p, c.dir); got != c.want {
			t.Errorf("within(%q, %q) = %v", c.p, c.dir, got)
		}
	}
}

func TestHolder(t *testing.T) {
	view, err := mergeView(smallBase, grantsOf("/srv ro", "/srv/a/b rw", "/tmp/in ro"))
	must(t, err)
	for p, want := range map[string]string{
		"/srv/x": "/srv", "/srv/a": "/srv", "/srv/a/b": "/srv", "/srv/a/b/c": "/srv/a/b", "/srv/a/bc": "/srv",
		"/srv": "", "/srvx": "", "/tmp/in": "/tmp", "/tmp/in/x": "/tmp/in", "/etc/hosts": "", "/bin/sh": "", "/dev/null": "",
		"/proc/self": "/proc", "/nowhere": "", "/usr/bin/env": "/usr",
	} {
		got := ""
		if h := holder(view, p); h != nil {
			got = h.At
		}
		if got != want {
			t.Errorf("%s lies in %q, want %q", p, got, want)
		}
	}
}

func TestVisible(t *testing.T) {
	view, err := mergeView(smallBase, grantsOf("/opt/tool ro", "/home/u/go:/go ro"))
	must(t, err)
	for p, want := range map[string]bool{
		"/usr/bin": true, "/usr/bin/": true, "/usr/../usr/bin": true, "/bin": true, "/opt/tool/bin": true, "/opt/tool": true,
		"/opt": false, "/opt/toolbox": false, "/home/u/go": false, "/home/u/go/bin": false, "/go/bin": false, "/usr/../opt": false,
		"/tmp/bin": false, "/nowhere": false, "/": false,
	} {
		if got := visible(view, p); got != want {
			t.Errorf("%s visible: %v", p, got)
		}
	}
}

// The access of an entry and its Landlock kind say the same.
func TestEntryKinds(t *testing.T) {
	for access, want := range map[string]landlock.Kind{
		"rw": landlock.Write, "ro": landlock.Read, "plain": landlock.Plain, "device": landlock.Device, "proc": landlock.Proc,
		"list": landlock.List, "": landlock.List, "anything": landlock.List, // what is not known gets least
	} {
		if got := (&Entry{Access: access}).kind(); got != want {
			t.Errorf("%q is kind %d, want %d", access, got, want)
		}
	}
	for op, want := range map[string]bool{
		"bind": true, "scratch": true, "proc": true, "devpts": true, "cgroup": true,
		"dir": false, "symlink": false, "file": false, "device": false,
	} {
		if got := (&Entry{Op: op}).mounted(); got != want {
			t.Errorf("%s is a mount: %v", op, got)
		}
	}
}

// Nothing in the base can be written but scratch, devices and /proc; nothing of /etc or /sys executed.
func TestBaseViewGrantsLittle(t *testing.T) {
	opened, links, err := openSystem()
	must(t, err)
	defer closeAll(opened)
	for _, e := range baseView(opened, nil, links, Identity{UID: 5, GID: 6}, false) {
		if !e.system || e.Clause != "default" || e.IDMap {
			t.Errorf("%+v is not marked as a part of every run", e)
		}
		switch e.Access {
		case "rw":
			if e.Op != "scratch" {
				t.Errorf("%s of the host is writable", e.At)
			}
		case "ro":
			if within(e.At, "/etc") || within(e.At, "/sys") || within(e.At, "/var") || within(e.At, "/home") {
				t.Errorf("%s may be executed", e.At)
			}
		}
		if e.Op == "bind" && e.From != e.At {
			t.Errorf("%s is shown at %s", e.From, e.At)
		}
	}
}

func TestGeneratedEtc(t *testing.T) {
	for _, c := range []struct {
		id     Identity
		passwd string
		group  string
	}{
		{Identity{UID: 1000, GID: 100}, "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nagent:x:1000:100:agent:/home/agent:/bin/sh\n", "agent:x:100:\n"},
		{Identity{UID: 0, GID: 0}, "root:x:0:0:root:/home/agent:/bin/sh\n", ""},
	} {
		files := generatedEtc(c.id, false)
		if want := c.passwd + "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"; files["passwd"] != want {
			t.Errorf("passwd %q, want %q", files["passwd"], want)
		}
		if want := "root:x:0:\ntty:x:5:\n" + c.group + "nogroup:x:65534:\n"; files["group"] != want {
			t.Errorf("group %q, want %q", files["group"], want)
		}
		if strings.Contains(files["resolv.conf"], "nameserver") || !strings.Contains(files["hosts"], "127.0.0.1\tlocalhost") {
			t.Errorf("%q, %q", files["resolv.conf"], files["hosts"])
		}
		for name, content := range files {
			if strings.Contains(name, "/") || !strings.HasSuffix(content, "\n") {
				t.Errorf("%q: %q", name, content)
			}
		}
	}
}
