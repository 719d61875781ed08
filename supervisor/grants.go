package supervisor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"
)

// grants are the host paths that a policy names, held by descriptor.
type grants struct {
	entries []Entry
	owner   *Opened       // of the identity: the workspace, else the first writable mount
	dir     string        // where the command starts, inside
	sockets []hostSocket  // found in the grants
	guarded []guarded     // paths that are compared when the run has ended
	trees   []guardedTree // and directories with all that is below them, in a run without mounts
	walked  bool          // all of the grants was searched for them
	secrets []hostSocket  // credential files in toolchains, masked as sockets are
	found   findings      // of toolchains and caches
	unsafe  []policy.Text // of the policy
}

// openGrants opens everything that the policy grants with the caller's ids.
// All problems are reported, not only the first.
func openGrants(p *policy.Policy, c Caller, environ []string) (*grants, error) {
	g := &grants{dir: Home, unsafe: p.Unsafe}
	var errs []error
	err := c.As(func() error {
		for _, m := range p.ReadOnly {
			errs = append(errs, g.add(m, clauseReadOnly, "--ro", "ro"))
		}
		for _, m := range p.Cow {
			errs = append(errs, g.add(m, clauseCow, "--cow", "cow"))
		}
		for _, m := range p.Writable {
			errs = append(errs, g.add(m, clauseWritable, "--rw", "rw"))
		}
		if w := p.Workspace; w.Path != "" {
			errs = append(errs, g.addWorkspace(w))
		}
		for _, u := range p.Unix {
			errs = append(errs, g.addSocket(u))
		}
		errs = append(errs, g.addFound(p, c, environ), g.protect(p.Protect), g.pin())
		return nil
	})
	if errors.Join(errs...) == nil && err == nil {
		g.sockets, g.walked = walkSockets(g.entries)
	}
	return g, errors.Join(append(errs, err)...)
}

func (g *grants) addWorkspace(w policy.Workspace) error {
	m := policy.Mount{Path: w.Path, At: w.Path, Source: w.Source}
	if err := g.add(m, clauseWorkspace, "-w", cmp.Or(w.Mode, "ro")); err != nil {
		return err
	}
	ws := &g.entries[len(g.entries)-1]
	if !ws.open.Dir() {
		return &Refusal{What: fmt.Sprintf("the workspace %s is not a directory", w.Path), Clause: ws.Clause, Remedy: "name a directory with -w DIR"}
	}
	g.owner, g.dir = ws.open, ws.At
	return nil
}

// pin mounts every directory between a writable grant and a grant inside it
// over itself. Otherwise the command could rename such a directory away, with
// the mount in it, and put another in its place: what is mounted on cannot be
// renamed (rename(2), EBUSY).
func (g *grants) pin() error {
	n := len(g.entries)
	for i := range n {
		inner := &g.entries[i]
		outer := -1
		for k := range n {
			if h := &g.entries[k]; h.Access == "rw" && h.At != inner.At && within(inner.At, h.At) && (outer < 0 || len(h.At) > len(g.entries[outer].At)) {
				outer = k
			}
		}
		if outer < 0 {
			continue
		}
		for d := path.Dir(inner.At); d != g.entries[outer].At; d = path.Dir(d) {
			if err := g.pinDir(&g.entries[outer], d); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *grants) pinDir(outer *Entry, at string) error {
	for i := range g.entries {
		if g.entries[i].At == at {
			return nil // a grant, or pinned already
		}
	}
	rel := strings.TrimPrefix(at, outer.At+"/")
	fd, err := unix.Openat2(int(outer.open.File.Fd()), rel, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOENT) {
		return nil // then the grant inside has no place either, which is reported there
	}
	if err != nil {
		return &Refusal{What: "cannot hold " + trace.Quote(at) + " in place", Err: err, Clause: outer.Clause}
	}
	o := Opened{File: os.NewFile(uintptr(fd), at), Path: path.Join(outer.open.Path, rel)}
	if err := unix.Fstat(fd, &o.Stat); err != nil {
		return errors.Join(err, o.File.Close())
	}
	op := "bind"
	if outer.Op == "cow" {
		op = "pin" // a part of the merged tree, not of the host's
	}
	g.entries = append(g.entries, Entry{
		Op: op, At: at, From: o.Path, Access: "rw", Dev: o.Stat.Dev, Ino: o.Stat.Ino,
		Clause: outer.Clause, Source: outer.Source, open: &o, pinned: outer.At,
	})
	return nil
}

// add opens one granted path and appends its entry.
func (g *grants) add(m policy.Mount, key, flag, access string) error {
	clause := clauseText(key, m.Source)
	o, err := openPath(m.Path)
	if err != nil {
		return grantError(m.Path, flag, clause, err)
	}
	if err := grantable(o); err != nil {
		err.Clause = clause
		return errors.Join(err, o.File.Close())
	}
	if err := g.broad(o, key, access); err != nil {
		err.Clause = clause
		return errors.Join(err, o.File.Close())
	}
	at := path.Clean(m.At)
	if m.At == "" {
		at = o.Path
	}
	op := "bind"
	if access == "cow" {
		op, access = "cow", "rw"
		if !o.Dir() {
			r := &Refusal{What: trace.Quote(o.Path) + " is not a directory, so changes to it cannot be staged", Clause: clause, Remedy: "name its directory"}
			return errors.Join(r, o.File.Close())
		}
	}
	g.entries = append(g.entries, Entry{
		Op: op, At: at, From: o.Path, Access: access, Dev: o.Stat.Dev, Ino: o.Stat.Ino,
		Clause: clause, Source: m.Source, open: &o,
	})
	if access == "rw" && g.owner == nil && o.Dir() && key != clauseCaches {
		g.owner = &o
		if g.dir == Home {
			g.dir = at
		}
	}
	return nil
}

// broad refuses a link to what the policy would have refused by its own name: whoever
// reads the policy sees the link.
func (g *grants) broad(o Opened, key, access string) *Refusal {
	if o.Real == o.Path || !slices.Contains([]string{clauseReadOnly, clauseCow, clauseWritable, clauseCaches}, key) {
		return nil
	}
	if why := policy.BroadMount(o.Real, access == "rw"); why != "" && !g.pauses("broad-mount") {
		return throughLink(o, why, "broad-mount")
	}
	return nil
}

// pauses reports whether the policy has a word under unsafe.
func (g *grants) pauses(word string) bool {
	return slices.ContainsFunc(g.unsafe, func(t policy.Text) bool { return t.Value == word })
}

func throughLink(o Opened, why, word string) *Refusal {
	return &Refusal{
		What:   trace.Quote(o.Path) + " leads to " + trace.Quote(o.Real) + ", which " + why,
		Remedy: "if the command must have it, write unsafe: [" + word + "] in a policy file",
	}
}

// grantError turns an open error into a sentence with a remedy.
func grantError(p, flag, clause string, err error) error {
	var named *os.PathError
	if errors.As(err, &named) { // the path is said already
		err = named.Err
	}
	r := &Refusal{What: "cannot grant " + trace.Quote(p), Clause: clause, Err: err}
	var link errSymlink
	switch {
	case errors.As(err, &link):
		r.Remedy = fmt.Sprintf("name the real path: %s %s", flag, trace.Quote(realPath(link)))
	case errors.Is(err, unix.ENOENT):
		r.Remedy = "create it, or remove the grant"
	case errors.Is(err, unix.EACCES):
		r.Remedy = "a run gets no more than its caller may open"
	}
	return r
}

func realPath(l errSymlink) string {
	if path.IsAbs(l.target) {
		return l.target
	}
	return path.Join(path.Dir(l.link), l.target)
}

// Magic numbers of file systems that show or steer the machine itself
// (statfs(2), include/uapi/linux/magic.h).
var machineFS = map[int64]string{
	unix.PROC_SUPER_MAGIC: "proc", unix.SYSFS_MAGIC: "sysfs", unix.CGROUP2_SUPER_MAGIC: "cgroup2", unix.CGROUP_SUPER_MAGIC: "cgroup",
	unix.BPF_FS_MAGIC: "bpf", unix.DEBUGFS_MAGIC: "debugfs", unix.TRACEFS_MAGIC: "tracefs", unix.SECURITYFS_MAGIC: "securityfs",
	unix.NSFS_MAGIC: "nsfs", unix.EFIVARFS_MAGIC: "efivarfs",
}

// grantable refuses what must not be shown inside as a mount.
func grantable(o Opened) *Refusal {
	switch o.Stat.Mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return &Refusal{What: o.Path + " is a socket", Remedy: "grant sockets with --unix " + o.Path}
	case unix.S_IFCHR, unix.S_IFBLK:
		return &Refusal{What: o.Path + " is a device node, and devices cannot be granted", Remedy: "remove the grant"}
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(o.File.Fd()), &st); err != nil {
		return &Refusal{What: "cannot grant " + o.Path, Err: os.NewSyscallError("fstatfs", err)}
	}
	if name, bad := machineFS[int64(st.Type)]; bad {
		return &Refusal{What: fmt.Sprintf("%s lies on a %s file system, which steers the machine", o.Path, name), Remedy: "remove the grant"}
	}
	return nil
}

// openSystem opens the host's system directories, which are root's: one look-up
// each is enough. Where the host has a symbolic link (merged /usr,
// /etc/localtime) the link itself is recreated.
func openSystem() (opened []Opened, links map[string]string, err error) {
	links = map[string]string{}
	for _, p := range systemPaths {
		fd, err := unix.Open(p, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == unix.ENOENT || err == unix.ENOTDIR {
			continue // this host has no such thing
		}
		if err != nil {
			return opened, links, &os.PathError{Op: "open", Path: p, Err: err}
		}
		o := Opened{File: os.NewFile(uintptr(fd), p), Path: p}
		if err := unix.Fstat(fd, &o.Stat); err != nil {
			return opened, links, errors.Join(os.NewSyscallError("fstat", err), o.File.Close())
		}
		if o.Stat.Mode&unix.S_IFMT != unix.S_IFLNK {
			opened = append(opened, o)
			continue
		}
		if links[p], err = readLink(fd); err != nil {
			return opened, links, errors.Join(err, o.File.Close())
		}
		if err := o.File.Close(); err != nil {
			return opened, links, err
		}
	}
	return opened, links, nil
}

// openDevices opens the nodes of /dev that every run has, for views in which none can be
// made: in a user namespace a new node leads nowhere. What the host has not is not inside.
func openDevices() (opened []Opened, err error) {
	for _, d := range devices {
		name := "/dev/" + d.name
		fd, err := unix.Open(name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		o := Opened{File: os.NewFile(uintptr(fd), name), Path: name}
		if err := unix.Fstat(fd, &o.Stat); err != nil {
			return opened, errors.Join(os.NewSyscallError("fstat", err), o.File.Close())
		}
		if o.Stat.Mode&unix.S_IFMT == unix.S_IFCHR && o.Stat.Rdev == unix.Mkdev(d.major, d.minor) {
			opened = append(opened, o)
		} else if err := o.File.Close(); err != nil { // something else by that name
			return opened, err
		}
	}
	return opened, nil
}

// readLink reads the target of a link held O_PATH.
func readLink(fd int) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	return string(buf[:max(n, 0)]), os.NewSyscallError("readlinkat", err)
}

func closeAll(list []Opened) error {
	var errs []error
	for _, o := range list {
		errs = append(errs, o.File.Close())
	}
	return errors.Join(errs...)
}

// addSocket grants exactly one unix socket. Its caller must be able to connect
// to it, which takes write permission (unix(7)); the kernel asks the same of
// the command later.
func (g *grants) addSocket(u policy.Text) error {
	clause := clauseText(clauseUnix, u.Source)
	o, err := openPath(u.Value)
	if err != nil {
		return grantError(u.Value, "--unix", clause, err)
	}
	if o.Stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		r := &Refusal{What: trace.Quote(o.Path) + " is not a socket", Clause: clause, Remedy: "grant files and directories with --ro or --rw"}
		return errors.Join(r, o.File.Close())
	}
	if word := policy.SocketWord(o.Real); word != "" && !g.pauses(word) {
		r := throughLink(o, "needs a word that makes a reader pause", word)
		r.Clause = clause
		return errors.Join(r, o.File.Close())
	}
	if err := unix.Faccessat2(int(o.File.Fd()), "", unix.W_OK, unix.AT_EMPTY_PATH|unix.AT_EACCESS); err != nil {
		r := &Refusal{What: "cannot grant " + trace.Quote(o.Path), Clause: clause, Err: err, Remedy: "a run reaches no more than its caller may connect to"}
		return errors.Join(r, o.File.Close())
	}
	g.entries = append(g.entries, Entry{
		Op: "bind", At: o.Path, From: o.Path, Access: "socket", Dev: o.Stat.Dev, Ino: o.Stat.Ino, Clause: clause, Source: u.Source, open: &o,
	})
	return nil
}
