package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/internal/codewatch"
	"github.com/agentguard/agentguard/internal/mountinfo"
	"github.com/agentguard/agentguard/internal/notify"
	"github.com/agentguard/agentguard/landlock"
)

// HostInfo is what the plan and the record say about the host.
type HostInfo struct {
	Mode               string   `json:"mode"`                       // root, userns or landlock: who makes the envelope, decision 0031
	Kernel             string   `json:"kernel"`                     // release, uname -r
	Machine            string   `json:"machine"`                    // uname -m
	Landlock           int      `json:"landlock_abi"`               // 0: none, and LandlockError says why
	LandlockError      string   `json:"landlock_error,omitempty"`   // "" where there is one
	LandlockMissing    []string `json:"landlock_missing,omitempty"` // what newer ABIs guard and this one does not
	BPF                bool     `json:"bpf"`                        // the programs are loaded and attached
	BPFError           string   `json:"bpf_error,omitempty"`        // why they are not
	UnixHooks          bool     `json:"unix_hooks"`                 // connects to unix sockets are recorded
	Notify             bool     `json:"seccomp_notify,omitempty"`   // where BPF is not: a filter's listener tells what happens
	NotifyError        string   `json:"seccomp_notify_error,omitempty"`
	Tier               string   `json:"tier,omitempty"` // which programs make the record: [bpf.Programs.Tier]
	CgroupMode         string   `json:"cgroup_mode"`
	CgroupDelegated    string   `json:"cgroup_delegated,omitempty"` // a user's own cgroup, in which its runs have theirs
	NoScope            string   `json:"no_scope,omitempty"`         // why systemd's user manager, which was asked for such a cgroup, gave none
	MissingControllers []string `json:"missing_controllers,omitempty"`
	Samples            bool     `json:"samples,omitempty"`      // limits without a controller are kept by looking at processes
	CountsTasks        bool     `json:"counts_tasks,omitempty"` // the command can have a user namespace in which RLIMIT_NPROC counts it alone
	IPv6               bool     `json:"ipv6"`
	ExecEvents         bool     `json:"exec_events"`           // an execve can be held while its file is hashed
	HiddenProc         string   `json:"hidden_proc,omitempty"` // what keeps a user from mounting a /proc: a part of the one here that is hidden
	MaxOpenFiles       int64    `json:"max_open_files"`        // hard limit of the supervisor; 0 unknown
	HidePID            string   `json:"hidepid,omitempty"`     // of the /proc here, when it hides processes: "hidepid=invisible"
	MaxFileBytes       int64    `json:"max_file_bytes"`        // the supervisor's own RLIMIT_FSIZE, which its record must fit in; 0 none
	NoCoreLimit        bool     `json:"no_core_limit"`         // RLIMIT_CORE is 0 here and cannot be 1
}

// Host is a probed host: what it can enforce, by probing and never by version.
type Host struct {
	Info HostInfo

	mountinfo    []byte // /proc/self/mountinfo
	layout       cgroup.Layout
	parent       *cgroup.Parent
	bpf          bpf.Config // of programs; a test seam has another parent than theirs
	killable     bool       // who waits for an answer is not woken by signals
	programs     *bpf.Programs
	system       []Opened
	links        map[string]string
	devices      []Opened // to be bound; nil: nodes are made
	procReadOnly []string
	procMasked   []string
	bash         bool
	sockets      []hostSocket
	nice         int // the caller's
	oomScoreAdj  int
	userns       UserNS   // of ModeLandlock: why there is none
	files        []Opened // of ModeLandlock: single files that are shown as they are
	tasks        int64    // of ModeLandlock: the user's, before the run
	rlimits      []Rlimit // hard limits of ours that a run in a user namespace cannot raise
	overflowUID  int      // as which a user namespace shows users that it does not map
	memAvailable int64    // bytes; 0 unknown
	diskFree     int64    // bytes that records have left on theirs
	noDisk       string   // why the run's own storage cannot lie on disk; "": it can
}

// newHost begins to look at the host. dir is the runtime directory, which is
// made if need be.
func newHost(dir string) (*Host, error) {
	h := &Host{Info: HostInfo{Mode: mode()}}
	if e := entered.Load(); e != nil {
		h.userns = e.userns
	}
	h.kernel()
	h.probeLandlock()
	var err error
	if h.mountinfo, err = mountinfo.Read(); err != nil {
		return nil, &Refusal{What: "/proc is closed to this process", Err: err, Remedy: "an outer agentguard without namespaces opens it with --allow-gap process.proc"}
	}
	if h.Info.Mode == ModeUserNS {
		h.Info.HiddenProc = hiddenProc(h.mountinfo)
	}
	return h, makeRuntimeDir(dir)
}

// openFiles cuts a limit on descriptors to the supervisor's own hard limit,
// which only CAP_SYS_RESOURCE could raise.
func (i *HostInfo) openFiles(n int64) int64 {
	if n < 0 || i.MaxOpenFiles == 0 {
		return n
	}
	return min(n, i.MaxOpenFiles)
}

// hardLimits are this process's, of what a plan limits: without CAP_SYS_RESOURCE over the
// host nobody raises them.
func hardLimits() []Rlimit {
	var out []Rlimit
	for _, l := range []Rlimit{
		{Name: "RLIMIT_FSIZE", resource: unix.RLIMIT_FSIZE},
		{Name: "RLIMIT_NOFILE", resource: unix.RLIMIT_NOFILE},
		{Name: "RLIMIT_NPROC", resource: unix.RLIMIT_NPROC},
		{Name: "RLIMIT_CPU", resource: unix.RLIMIT_CPU},
	} {
		var have unix.Rlimit
		if unix.Getrlimit(l.resource, &have) == nil && have.Max != unix.RLIM_INFINITY {
			l.Value = have.Max
			out = append(out, l)
		}
	}
	return out
}

func overflowUID() int {
	n, err := strconv.Atoi(sysctl("kernel.overflowuid"))
	if err != nil {
		return 65534 // DEFAULT_OVERFLOWUID (include/linux/highuid.h)
	}
	return n
}

// noCoreLimit reports whether core dumps cannot be limited to one byte: sudo, and
// engines with --ulimit core=0, leave a hard limit of 0, which only
// CAP_SYS_RESOURCE can raise, and containers lack that.
func noCoreLimit() bool {
	var core unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_CORE, &core) != nil || core.Max > 0 {
		return false
	}
	return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Max: 1}) != nil
}

// crashes says whom the kernel tells of a crash in spite of our limit; "" nobody. A helper (core(5)) is
// not started where the limit is 1. A socket (Linux 6.16) is connected to whatever the limit is, from the
// host's network namespace (fs/coredump.c, coredump_sock_connect).
func crashes(pattern []byte, noLimit bool) string {
	switch {
	case bytes.HasPrefix(pattern, []byte("|")) && noLimit:
		return "crashes: the host's core_pattern helper is started for them (RLIMIT_CORE is 0 here, and only 1 would stop that)"
	case bytes.HasPrefix(pattern, []byte("@")):
		return "crashes: the host's core_pattern socket is sent them, with the memory of what crashed (no limit stops that)"
	}
	return ""
}

func corePattern() []byte {
	b, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		return nil
	}
	return b
}

func (h *Host) openSystem() (err error) {
	h.Info.IPv6 = exists("/proc/net/if_inet6")
	h.Info.ExecEvents = h.Info.Mode == ModeRoot && codewatch.Probe() == nil // CAP_SYS_ADMIN over the host
	h.procReadOnly, h.procMasked = existing(procReadOnly), existing(procMasked)
	h.bash = exists("/bin/bash")
	h.memAvailable = memAvailable()
	if n, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil {
		h.nice = 20 - n // the raw system call returns 20 - nice (getpriority(2))
	}
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && files.Max < 1<<31 {
		h.Info.MaxOpenFiles = int64(files.Max)
	}
	h.Info.MaxFileBytes = ownFileLimit()
	h.Info.HidePID = hidePID(h.mountinfo)
	h.Info.NoCoreLimit = noCoreLimit()
	if b, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil {
		h.oomScoreAdj, _ = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	if h.sockets, err = hostSockets(); err != nil {
		return err
	}
	if h.system, h.links, err = openSystem(); err != nil || h.Info.Mode == ModeRoot {
		return err
	}
	h.rlimits, h.overflowUID = hardLimits(), overflowUID()
	h.devices, err = openDevices()
	return err
}

func exists(p string) bool {
	var st unix.Stat_t
	return unix.Lstat(p, &st) == nil
}

func (h *Host) kernel() {
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Info.Kernel = unix.ByteSliceToString(u.Release[:])
		h.Info.Machine = unix.ByteSliceToString(u.Machine[:])
	}
}

func (h *Host) probeLandlock() {
	abi, err := landlock.ABI()
	switch {
	case errors.Is(err, unix.ENOSYS):
		h.Info.LandlockError = "this kernel was built without Landlock"
	case errors.Is(err, unix.EOPNOTSUPP):
		h.Info.LandlockError = "Landlock is switched off at boot (lsm=)"
	case err != nil:
		h.Info.LandlockError = err.Error()
	}
	h.Info.Landlock, h.Info.LandlockMissing = abi, landlockMissing(abi)
}

// MakeRuntimeDir makes [RuntimeDir] and refuses one that is not root's.
func MakeRuntimeDir() error { return makeRuntimeDir(runtimeDir()) }

// makeRuntimeDir makes the runtime directory and refuses one that is not this user's, root's as a rule.
func makeRuntimeDir(dir string) error {
	mkdir, perm := os.Mkdir, os.FileMode(0o755)
	if mode() != ModeRoot {
		mkdir, perm = os.MkdirAll, 0o700 // it may be part of a state directory that is not there yet
	}
	if err := mkdir(dir, perm); err != nil && !errors.Is(err, os.ErrExist) {
		return &Refusal{What: "cannot make the runtime directory " + dir, Err: err, Remedy: placeRemedy()}
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return &Refusal{What: fmt.Sprintf("%s is not a directory that only %s can write", dir, userText(os.Geteuid())), Remedy: "remove it"}
	}
	return nil
}

// placeRemedy is where else a user's locks may lie.
func placeRemedy() string {
	if mode() == ModeRoot {
		return ""
	}
	return "set XDG_RUNTIME_DIR, or keep records elsewhere with --state DIR"
}

func userText(uid int) string {
	if uid == 0 {
		return "root"
	}
	return "user " + strconv.Itoa(uid)
}

func (h *Host) probeCgroup(name string) error {
	layout := cgroup.Parse(h.mountinfo)
	h.layout, h.Info.CgroupMode = layout, layout.Mode()
	if layout.Unified == "" {
		return &Refusal{
			What:   "no cgroup v2 hierarchy is mounted, so that a run could be neither bounded nor observed",
			Remedy: "mount one: mount -t cgroup2 none /sys/fs/cgroup (or /sys/fs/cgroup/unified beside v1)",
		}
	}
	var err error
	h.parent, err = layout.Parent(name)
	if err != nil {
		return &Refusal{
			What: "cannot make the parent cgroup of all runs below " + layout.Unified, Err: err,
			Remedy: "inside a container, give it a writable cgroup v2 of its own (--cgroupns=private and a read-write mount)",
		}
	}
	h.Info.MissingControllers = h.parent.Missing
	return nil
}

// bpfConfig is where the pinned programs are, and whom they judge.
func (h *Host) bpfConfig(dir string) bpf.Config {
	return bpf.Config{PinDir: filepath.Join(dir, "bpf"), Parent: h.parent.Path, Level: h.parent.Level}
}

// probeBPF opens the programs of the parent cgroup. Where those of another mount namespace
// judge it, this namespace gets a parent and programs of its own.
func (h *Host) probeBPF(dir string) error {
	h.bpf = h.bpfConfig(dir)
	p, err := bpf.Open(h.bpf)
	if errors.Is(err, bpf.ErrForeign) {
		if err := h.probeCgroup(apartName()); err != nil {
			return err
		}
		h.bpf = h.bpfConfig(dir)
		p, err = bpf.Open(h.bpf)
	}
	if err != nil {
		h.Info.BPFError = err.Error()
		return nil
	}
	h.programs, h.Info.BPF, h.Info.UnixHooks, h.Info.Tier = p, true, p.UnixHooks(), p.Tier()
	return nil
}

// probeNotify asks whether the command's filter can report to us; only where there is
// no BPF.
func (h *Host) probeNotify() {
	if err := notify.Probe(); err != nil {
		h.Info.NotifyError = err.Error()
		return
	}
	h.Info.Notify = true
	_, h.killable = notify.InstallFlags()
}

// notifies reports whether a run's events come from its filter's listener.
func (h *Host) notifies() bool { return !h.Info.BPF && h.Info.Notify }

// Close releases what the host probe opened.
func (h *Host) Close() error {
	err := errors.Join(closeAll(h.system), closeAll(h.devices), closeAll(h.files))
	h.system, h.devices, h.files = nil, nil, nil
	if h.programs != nil {
		err = errors.Join(err, h.programs.Close())
		h.programs = nil
	}
	return err
}

// machineDirs are places that no grant may reach: the pinned programs and the
// locks live there.
func machineDirs(dir string) []devIno {
	var out []devIno
	for p := dir; ; p = filepath.Dir(p) {
		var st unix.Stat_t
		if unix.Lstat(p, &st) == nil {
			out = append(out, devIno{st.Dev, st.Ino})
		}
		if p == "/" {
			return out
		}
	}
}

type devIno struct{ dev, ino uint64 }

// reached returns the first grant that is one of the directories, so that
// everything below them would be seen inside.
func reached(entries []Entry, dirs []devIno) *Entry {
	for i := range entries {
		if slices.Contains(dirs, devIno{entries[i].Dev, entries[i].Ino}) {
			return &entries[i]
		}
	}
	return nil
}

// existing keeps the paths that exist on this host.
func existing(list []string) []string {
	var out []string
	for _, p := range list {
		if exists(p) {
			out = append(out, p)
		}
	}
	return out
}
