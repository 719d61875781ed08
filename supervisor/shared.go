package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/internal/seccomp"
	"github.com/agentguard/agentguard/landlock"
	"github.com/agentguard/agentguard/policy"
)

// A run of ModeLandlock shares the namespaces of its host: there is no view of its own.
// What it may open is what Landlock grants, by the host's own paths, and what a path can
// do without being opened is refused by its seccomp filter. Decision 0033.

// shared reports whether the run shares the host's namespaces. By pointer: what birth finds out
// about the host is written beside those who ask.
func (i *HostInfo) shared() bool { return i.Mode == ModeLandlock }

// Of the host's own files, where none can be made for a run: who its users are, and facts
// of the machine without a process in them. A rule on a file of procfs holds as long
// as its entry does, so that they stay open for as long as the run.
var sharedFiles = []string{
	"/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts",
	"/proc/cpuinfo", "/proc/filesystems", "/proc/loadavg", "/proc/meminfo", "/proc/stat", "/proc/uptime", "/proc/version",
}

// openShared opens sharedFiles, and /proc as a whole where that was asked for.
func openShared(proc bool) (opened []Opened, err error) {
	list := sharedFiles
	if proc {
		list = append(slices.Clone(list), "/proc")
	}
	for _, name := range list {
		fd, err := unix.Open(name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // this host has no such thing, or does not show it to us
		}
		o := Opened{File: os.NewFile(uintptr(fd), name), Path: name}
		if err := unix.Fstat(fd, &o.Stat); err != nil {
			return opened, errors.Join(os.NewSyscallError("fstat", err), o.File.Close(), closeAll(opened))
		}
		if o.Stat.Mode&unix.S_IFMT == unix.S_IFLNK {
			err = o.File.Close()
		} else {
			opened = append(opened, o)
		}
		if err != nil {
			return opened, err
		}
	}
	return opened, nil
}

// sharedView is what the command may open: the system, the grants, and the run's private
// directory.
func sharedView(in planInput) ([]Entry, error) {
	h := in.host
	var base []Entry
	add := func(o Opened, access string) {
		base = append(base, Entry{
			Op: "path", At: o.Path, From: o.Path, Access: access, Dev: o.Stat.Dev, Ino: o.Stat.Ino, Clause: "default", open: &o, system: true,
		})
	}
	for _, o := range slices.Concat(h.system, h.files) {
		access := "ro"
		if !within(o.Path, "/usr") && (within(o.Path, "/etc") || within(o.Path, "/sys") || within(o.Path, "/proc")) {
			access = "plain"
		}
		add(o, access)
	}
	for _, o := range h.devices {
		if o.Path != "/dev/tty" || in.terminal { // without a terminal of its own, it would be the caller's
			add(o, "device")
		}
	}
	for _, at := range sortedKeys(h.links) {
		base = append(base, Entry{Op: "symlink", At: at, From: h.links[at], system: true, Clause: "default"})
	}
	for _, o := range in.private.dirs() {
		add(o, "rw")
	}
	var grants []Entry
	for _, e := range in.grants.entries {
		if e.guard || e.pinned != "" || in.grants.holdsSecrets(&e) {
			continue // a rule grants, and takes nothing away: see sharedGaps
		}
		e.Op = "path"
		grants = append(grants, e)
	}
	return mergeView(base, grants)
}

// unstaged is the policy without what takes a mount: nothing is copy-on-write, and every
// path is where the host has it. What is lost by it are gaps.
func unstaged(p *policy.Policy) (*policy.Policy, []Gap) {
	out := *p
	var lost []Gap
	gap := func(clause string, src policy.Source, missing, remedy string) {
		lost = append(lost, Gap{Clause: clause, Source: src.String(), Missing: missing, Remedy: remedy, byDefault: src.IsDefault()})
	}
	if p.Workspace.Path != "" && p.Workspace.Mode == "cow" {
		out.Workspace.Mode = "ro"
		gap("filesystem.workspace.mode", p.Workspace.ModeSource, "changes cannot be staged without a mount: the workspace is read-only", "write --mode ro or --mode rw")
	}
	for _, m := range p.Cow {
		gap(clauseCow, m.Source, "changes to "+m.Path+" cannot be staged without a mount: it is read-only", "use --ro or --rw")
	}
	for _, c := range p.Caches {
		gap(clauseCaches, c.Source, "a copy of the cache "+c.Value+" cannot be made without a mount: the run has none", "leave it out")
	}
	for _, c := range unstagedWords(p) {
		gap(c.clause, c.text.Source, c.missing, c.remedy)
	}
	out.ReadOnly, out.Cow, out.Caches = slices.Concat(p.ReadOnly, p.Cow), nil, nil
	for _, list := range []struct {
		clause string
		mounts *[]policy.Mount
	}{{clauseReadOnly, &out.ReadOnly}, {clauseWritable, &out.Writable}} {
		*list.mounts = slices.Clone(*list.mounts)
		for i := range *list.mounts {
			m := &(*list.mounts)[i]
			if m.At != "" && path.Clean(m.At) != path.Clean(m.Path) {
				gap(list.clause, m.Source, m.Path+" cannot be shown at "+m.At+" without a mount: it is where the host has it", "leave "+m.At+" out")
				m.At = ""
			}
		}
	}
	return &out, lost
}

// impossible refuses what this mode has nothing for and nobody should want without it.
func impossible(p *policy.Policy, h *Host) error {
	refuse := func(src policy.Source, clause, what string) error {
		return &Refusal{What: what, Clause: clauseText(clause, src), Remedy: helperRemedy}
	}
	switch {
	case h.Info.Landlock == 0:
		return &Refusal{What: h.userns.Refusal().What + ", and without Landlock nothing is left to confine a command with: " + h.Info.LandlockError, Remedy: helperRemedy}
	case wantsEgress(p):
		return refuse(p.Egress.Source, "network", "without a network namespace it is all of the host's network or none: neither allowlist, nor publish, nor broker")
	case len(p.Unix) > 0 && h.Info.Landlock < 9:
		return refuse(p.Unix[0].Source, clauseUnix, "one unix socket cannot be granted without all others before Linux 7.1 (Landlock ABI 9)")
	}
	return nil
}

// sharing is what the filter of such a run lets pass.
func sharing(p *policy.Policy, h *Host) seccomp.Sharing {
	return seccomp.Sharing{Unix: h.Info.Landlock >= 9, Metadata: p.AcceptsGap(gapMetadata)}
}

// sharedRuleset grants what the view has.
func sharedRuleset(p *Plan) (*os.File, error) {
	var grants []landlock.Grant
	for i := range p.View {
		if e := &p.View[i]; e.Op == "path" {
			grants = append(grants, landlock.Grant{FD: int(e.open.File.Fd()), Kind: e.kind(), Dir: e.open.Dir(), Name: e.At})
		}
	}
	return landlock.NewRuleset(p.LandlockABI, grants)
}

// atHome leads HOME and TMPDIR into the private directory, where the policy says nothing else.
// git ends with an error where the system's configuration is there and cannot be read.
func (p *private) atHome(env []string) []string {
	out := slices.Clone(env)
	if lookupEnv(out, noSystemGit) == "" {
		out = append(out, noSystemGit+"=1")
		slices.Sort(out)
	}
	for i, kv := range out {
		switch kv {
		case "HOME=" + Home:
			out[i] = "HOME=" + p.home.Path
		case "TMPDIR=/tmp":
			out[i] = "TMPDIR=" + p.tmp.Path
		}
	}
	return out
}

const noSystemGit = "GIT_CONFIG_NOSYSTEM" // git(1)

// taskCount are the tasks of a user, as RLIMIT_NPROC counts them (getrlimit(2)), as far as
// /proc shows them.
func taskCount(uid int) int64 {
	list, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	n := int64(0)
	for _, d := range list {
		if d.Name()[0] < '0' || d.Name()[0] > '9' {
			continue
		}
		b, err := os.ReadFile("/proc/" + d.Name() + "/status")
		if err != nil {
			continue // it has ended
		}
		var threads int64
		var owner int
		for line := range strings.Lines(string(b)) {
			_, _ = fmt.Sscanf(line, "Uid:\t%d", &owner)
			_, _ = fmt.Sscanf(line, "Threads:\t%d", &threads)
		}
		if owner == uid {
			n += threads
		}
	}
	return n
}

// share makes the plan that of a run in its private directory.
func (p *Plan) share(in planInput) {
	p.Env = in.private.atHome(p.Env)
	if p.Dir == Home {
		p.Dir = in.private.home.Path
	}
	p.ProcReadOnly, p.ProcMasked = nil, nil
	s := sharing(in.policy, in.host)
	p.Sharing = &s
}

// shareLimits adds what bounds each process where nothing bounds all of them. RLIMIT_NPROC
// counts every task of the user, so that those which were there before are added.
func (p *Plan) shareLimits(tasks int64) {
	add := func(name string, resource int, value int64) {
		p.Rlimits = append(p.Rlimits, Rlimit{name, uint64(value), resource})
	}
	if n := p.Limits.Tasks; n >= 0 && tasks > 0 && slices.Contains(p.Host.MissingControllers, cgroup.Pids) {
		add("RLIMIT_NPROC", unix.RLIMIT_NPROC, tasks+n+16)
	}
	if n := p.Limits.CPU; n >= 0 {
		add("RLIMIT_CPU", unix.RLIMIT_CPU, n/int64(time.Second)+1)
	}
}
