package supervisor

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/landlock"
	"github.com/agentguard/agentguard/policy"
)

// Entry is one thing that the command sees: the view is a list of them, on a
// root of its own where nothing else exists.
type Entry struct {
	Op     string        `json:"op"`               // dir, symlink, file, device, bind, cow, pin, mask, scratch, proc, devpts, cgroup; path: not mounted, where the host has it
	At     string        `json:"at"`               // absolute path inside
	From   string        `json:"from,omitempty"`   // host path of a bind, target of a symlink, name below the scratch file system
	Access string        `json:"access,omitempty"` // ro, rw, plain (read, not execute), list, device, proc, socket
	Dev    uint64        `json:"dev,omitempty"`    // identity of a bind's source
	Ino    uint64        `json:"ino,omitempty"`
	IDMap  bool          `json:"idmap,omitempty"`  // host uid 0 is shown as the run's uid; of a cow entry, where its file system can
	Layer  string        `json:"layer,omitempty"`  // names the layers of a cow entry
	Mode   uint32        `json:"mode,omitempty"`   // permission bits of dir, file, device, scratch
	Cache  string        `json:"cache,omitempty"`  // name of the cache that a cow entry is: its changes end with the run
	Clause string        `json:"clause,omitempty"` // what granted it: "filesystem.read_only_mounts (policy.yaml:4:8)"
	Source policy.Source `json:"-"`

	content string // of a generated file
	rdev    uint64 // of a device
	open    *Opened
	system  bool   // part of the default view, not a grant
	guard   bool   // read-only in a writable directory because other programs act on it
	pinned  string // place of the grant that this directory belongs to
	led     string // of a toolchain, the directory of programs that led to it
	found   bool   // by looking, not by its name: left out where it may not be shown
}

// kind is the Landlock grant of an entry.
func (e *Entry) kind() landlock.Kind {
	switch e.Access {
	case "rw":
		return landlock.Write
	case "ro":
		return landlock.Read
	case "plain":
		return landlock.Plain
	case "device":
		return landlock.Device
	case "socket":
		return landlock.Socket
	case "proc":
		return landlock.Proc
	}
	return landlock.List
}

// mounted reports whether the entry is a mount of its own, as opposed to an
// object in the synthetic root.
func (e *Entry) mounted() bool {
	switch e.Op {
	case "bind", "cow", "pin", "scratch", "proc", "devpts", "cgroup", "path": // path: as good as one, where there are no mounts
		return true
	}
	return false
}

// shows reports whether the entry shows a directory or file of the host.
func (e *Entry) shows() bool { return e.Op == "bind" || e.Op == "cow" || e.Op == "path" }

// width orders grants of one path: reading, staged changes, real changes.
func (e *Entry) width() int {
	switch {
	case e.Access != "rw":
		return 0
	case e.Op == "cow":
		return 1
	}
	return 2
}

// systemPaths are shown read-only, or recreated as symbolic links where the
// host has them so (merged /usr). Of /etc it is what programs cannot do without
// and what holds no secret; everything else in /etc does not exist inside. Each
// is a mount of every run, so the list is short on purpose.
var systemPaths = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
	"/etc/alternatives",
	"/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/tls/openssl.cnf", "/etc/pki/ca-trust", "/etc/crypto-policies",
	"/etc/ld.so.cache", "/etc/localtime", "/etc/timezone", "/etc/os-release", "/etc/locale.conf",
	"/etc/services", "/etc/protocols", "/etc/mime.types", "/etc/fonts",
	"/etc/chromium.d", "/etc/R", "/etc/texmf", "/etc/java-8-openjdk", "/etc/java-11-openjdk", "/etc/java-17-openjdk", "/etc/java-21-openjdk", "/etc/java-25-openjdk", "/etc/maven", "/etc/perl",
	"/sys/devices/system/cpu", // runtimes size their thread pools by it
}

// devices are the nodes of /dev, by name, major and minor.
var devices = []struct {
	name         string
	major, minor uint32
}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}}

// scratchDirs are the writable places of every run, all on one sized tmpfs.
var scratchDirs = []struct {
	name, at string
	mode     uint32
	own      bool // belongs to the run's uid
}{
	{"tmp", "/tmp", 0o1777, false},
	{"vartmp", "/var/tmp", 0o1777, false},
	{"shm", "/dev/shm", 0o1777, false},
	{"home", Home, 0o700, true},
}

// Home is the command's home directory.
const Home = "/home/agent"

// Clause names of the keys that grant paths.
const (
	clauseReadOnly  = "filesystem.read_only_mounts"
	clauseWritable  = "filesystem.writable_mounts"
	clauseCow       = "filesystem.cow_mounts"
	clauseWorkspace = "filesystem.workspace"
	clauseUnix      = "network.unix"

	clauseToolchains = "filesystem.toolchains"
	clauseCaches     = "filesystem.caches"
)

// clauseText is how a clause appears in errors, the plan and the record.
func clauseText(key string, src policy.Source) string { return key + " (" + src.String() + ")" }

// baseView is what every run sees besides its grants: system is the host's
// system directories, opened; hostname and id fill the generated files. nodes are the
// host's devices where none can be made; nil: they are made.
func baseView(system, nodes []Opened, links map[string]string, id Identity, resolver bool) []Entry {
	v := make([]Entry, 0, 96) // more than there are
	add := func(e Entry) { e.system = true; e.Clause = "default"; v = append(v, e) }
	for _, o := range system {
		o := o
		access := "ro"
		if within(o.Path, "/etc") || within(o.Path, "/sys") {
			access = "plain"
		}
		add(Entry{Op: "bind", At: o.Path, From: o.Path, Access: access, Dev: o.Stat.Dev, Ino: o.Stat.Ino, open: &o})
	}
	for _, at := range sortedKeys(links) {
		add(Entry{Op: "symlink", At: at, From: links[at]})
	}
	for name, content := range generatedEtc(id, resolver) {
		add(Entry{Op: "file", At: "/etc/" + name, Access: "plain", Mode: 0o644, content: content})
	}
	for _, o := range nodes {
		o := o
		add(Entry{Op: "bind", At: o.Path, From: o.Path, Access: "device", Dev: o.Stat.Dev, Ino: o.Stat.Ino, open: &o})
	}
	for _, d := range devices {
		if nodes != nil {
			break
		}
		add(Entry{Op: "device", At: "/dev/" + d.name, Access: "device", Mode: 0o666, rdev: unix.Mkdev(d.major, d.minor)})
	}
	for at, target := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1",
		"/dev/stderr": "/proc/self/fd/2", "/dev/ptmx": "pts/ptmx", "/etc/mtab": "/proc/self/mounts", "/var/run": "/run",
	} {
		add(Entry{Op: "symlink", At: at, From: target})
	}
	for _, s := range scratchDirs {
		add(Entry{Op: "scratch", At: s.at, From: s.name, Access: "rw", Mode: s.mode})
	}
	add(Entry{Op: "dir", At: "/run", Access: "list", Mode: 0o755})
	add(Entry{Op: "proc", At: "/proc", Access: "proc"})
	add(Entry{Op: "devpts", At: devptsAt, Access: "device"})
	add(Entry{Op: "cgroup", At: "/sys/fs/cgroup", Access: "plain"})
	return v
}

// generatedEtc are files that would say too much, or the wrong thing, if they
// were the host's.
func generatedEtc(id Identity, resolver bool) map[string]string {
	user := fmt.Sprintf("agent:x:%d:%d:agent:%s:/bin/sh\n", id.UID, id.GID, Home)
	group := fmt.Sprintf("agent:x:%d:\n", id.GID)
	if id.UID == 0 {
		user = fmt.Sprintf("root:x:0:0:root:%s:/bin/sh\n", Home)
		group = ""
	} else {
		user = "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n" + user
	}
	resolv := "# agentguard: this run has no resolver\n"
	if resolver {
		resolv = "# agentguard: names of the allowlist, and no others\nnameserver 127.0.0.1\n"
	}
	return map[string]string{
		"passwd":        user + "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group":         "root:x:0:\ntty:x:5:\n" + group + "nogroup:x:65534:\n",
		"hosts":         "127.0.0.1\tlocalhost " + Hostname + "\n::1\tlocalhost ip6-localhost ip6-loopback\n",
		"hostname":      Hostname + "\n",
		"resolv.conf":   resolv,
		"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\nnetworks: files\n",
	}
}

// Hostname is the host name inside every run.
const Hostname = "agentguard"

// mergeView puts grants over the base: what lies at or below a grant's place
// gives way to it, except the kernel's own file systems. The result is sorted
// so that a parent comes before what is mounted inside it.
func mergeView(base, grants []Entry) ([]Entry, error) {
	out := make([]Entry, 0, len(base)+len(grants))
	for _, g := range grants {
		if err := placeable(g); err != nil {
			return nil, err
		}
		same := slices.IndexFunc(out, func(e Entry) bool { return e.At == g.At })
		if same < 0 {
			out = append(out, g)
			continue
		}
		have := out[same]
		if have.Dev != g.Dev || have.Ino != g.Ino {
			return nil, &Refusal{
				What:   fmt.Sprintf("two different paths are granted at %s: %s and %s", g.At, have.From, g.From),
				Clause: g.Clause, Remedy: "give one of them another place with PATH:AT",
			}
		}
		if g.width() > have.width() { // the same path twice: the wider grant holds
			out[same] = g
		}
	}
	n := len(out)
	if err := belowLink(base, out); err != nil {
		return nil, err
	}
	for _, b := range base {
		if !slices.ContainsFunc(out[:n], func(g Entry) bool { return within(b.At, g.At) && (b.At != Home || g.At == Home) }) {
			out = append(out, b)
		}
	}
	slices.SortStableFunc(out, func(a, b Entry) int { return strings.Compare(a.At, b.At) })
	return out, nil
}

// placeable refuses grants at places that belong to the run itself.
func placeable(g Entry) error {
	for _, own := range []string{"/proc", "/dev", "/sys"} {
		if within(g.At, own) && !within(g.At, "/dev/shm") {
			return &Refusal{
				What: fmt.Sprintf("%s cannot be granted: %s inside is the run's own", g.At, own), Clause: g.Clause,
				Remedy: "remove it, or give it another place with PATH:AT",
			}
		}
	}
	for _, own := range []string{"/" + ownDir, canaryFile} {
		if within(g.At, own) {
			return &Refusal{What: g.At + " is agentguard's own place inside", Clause: g.Clause, Remedy: "choose another place with PATH:AT"}
		}
	}
	if g.At == "/" {
		return &Refusal{What: "the whole host cannot be granted", Clause: g.Clause, Remedy: "name the directories that the command needs"}
	}
	return nil
}

// belowLink refuses a grant whose place lies below a symbolic link of the base
// (/bin is usr/bin): the directory that it would need is the link itself.
func belowLink(base, grants []Entry) error {
	for _, g := range grants {
		for _, b := range base {
			if b.Op == "symlink" && g.At != b.At && within(g.At, b.At) {
				target := b.From
				if !path.IsAbs(target) {
					target = path.Join(path.Dir(b.At), target)
				}
				return &Refusal{
					What: fmt.Sprintf("%s lies below %s, which is a symbolic link to %s inside", g.At, b.At, b.From), Clause: g.Clause,
					Remedy: "name the real path: " + path.Join(target, strings.TrimPrefix(g.At, b.At)),
				}
			}
		}
	}
	return nil
}

// within reports whether p is dir or lies below it; both are clean and absolute.
func within(p, dir string) bool {
	return dir == "/" || strings.HasPrefix(p, dir) && (len(p) == len(dir) || p[len(dir)] == '/')
}

// holder returns the mount that p lies in: the deepest mounted entry above it,
// or nil for the synthetic root. The entry that is mounted at p itself does
// not count.
func holder(view []Entry, p string) *Entry {
	var best *Entry
	for i := range view {
		e := &view[i]
		if e.mounted() && e.At != p && within(p, e.At) && (best == nil || len(e.At) > len(best.At)) {
			best = e
		}
	}
	return best
}

// visible reports whether a host path is seen inside at the same place, and so
// whether a PATH entry is of use.
func visible(view []Entry, p string) bool {
	p = path.Clean(p)
	var best *Entry
	for i := range view {
		e := &view[i]
		if e.Op == "symlink" && within(p, e.At) {
			return true // /bin -> usr/bin
		}
		if e.mounted() && within(p, e.At) && (best == nil || len(e.At) > len(best.At)) {
			best = e
		}
	}
	return best != nil && best.shows() && best.From == best.At
}

func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}
