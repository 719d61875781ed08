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
	"github.com/agentguard/agentguard/landlock"
)

// HostInfo is what the plan and the record say about the host.
type HostInfo struct {
	Kernel             string   `json:"kernel"`                     // release, uname -r
	Machine            string   `json:"machine"`                    // uname -m
	Landlock           int      `json:"landlock_abi"`               // 0: none, and LandlockError says why
	LandlockError      string   `json:"landlock_error,omitempty"`   // "" where there is one
	LandlockMissing    []string `json:"landlock_missing,omitempty"` // what newer ABIs guard and this one does not
	BPF                bool     `json:"bpf"`                        // the programs are loaded and attached
	BPFError           string   `json:"bpf_error,omitempty"`        // why they are not
	UnixHooks          bool     `json:"unix_hooks"`                 // connects to unix sockets are recorded
	Tier               string   `json:"tier,omitempty"`             // which programs make the record: [bpf.Programs.Tier]
	CgroupMode         string   `json:"cgroup_mode"`
	MissingControllers []string `json:"missing_controllers,omitempty"`
	IPv6               bool     `json:"ipv6"`
	ExecEvents         bool     `json:"exec_events"`    // an execve can be held while its file is hashed
	MaxOpenFiles       int64    `json:"max_open_files"` // hard limit of the supervisor; 0 unknown
	NoCoreLimit        bool     `json:"no_core_limit"`  // RLIMIT_CORE is 0 here and cannot be 1
}

// Host is a probed host: what it can enforce, by probing and never by version.
type Host struct {
	Info HostInfo

	mountinfo    []byte // /proc/self/mountinfo
	layout       cgroup.Layout
	parent       *cgroup.Parent
	bpf          bpf.Config // of programs; a test seam has another parent than theirs
	programs     *bpf.Programs
	system       []Opened
	links        map[string]string
	procReadOnly []string
	procMasked   []string
	bash         bool
	sockets      []hostSocket
	nice         int // the caller's
	oomScoreAdj  int
	memAvailable int64  // bytes; 0 unknown
	diskFree     int64  // bytes that records have left on theirs
	noDisk       string // why the run's own storage cannot lie on disk; "": it can
}

// newHost begins to look at the host. dir is the runtime directory, which is
// made if need be.
func newHost(dir string) (*Host, error) {
	h := &Host{}
	if os.Geteuid() != 0 {
		return nil, &Refusal{What: "agentguard needs root to make the envelope and the record", Remedy: "run it with sudo"}
	}
	h.kernel()
	h.probeLandlock()
	var err error
	if h.mountinfo, err = os.ReadFile("/proc/self/mountinfo"); err != nil {
		return nil, err
	}
	return h, makeRuntimeDir(dir)
}

// openFiles cuts a limit on descriptors to the supervisor's own hard limit,
// which only CAP_SYS_RESOURCE could raise.
func (i HostInfo) openFiles(n int64) int64 {
	if n < 0 || i.MaxOpenFiles == 0 {
		return n
	}
	return min(n, i.MaxOpenFiles)
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

// corePiped reports whether the kernel starts a helper for each crash (core(5)).
func corePiped() bool {
	b, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	return err == nil && bytes.HasPrefix(b, []byte("|"))
}

func (h *Host) openSystem() (err error) {
	h.Info.IPv6 = exists("/proc/net/if_inet6")
	h.Info.ExecEvents = codewatch.Probe() == nil
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
	h.Info.NoCoreLimit = noCoreLimit()
	if b, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil {
		h.oomScoreAdj, _ = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	if h.sockets, err = hostSockets(); err != nil {
		return err
	}
	h.system, h.links, err = openSystem()
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

// makeRuntimeDir makes the runtime directory and refuses one that is not root's.
func makeRuntimeDir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return &Refusal{What: "cannot make the runtime directory " + dir, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != 0 || st.Mode&0o022 != 0 {
		return &Refusal{What: fmt.Sprintf("%s is not a directory that only root can write", dir), Remedy: "remove it"}
	}
	return nil
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

func (h *Host) probeBPF(dir string) {
	h.bpf = h.bpfConfig(dir)
	p, err := bpf.Open(h.bpf)
	if err != nil {
		h.Info.BPFError = err.Error()
		return
	}
	h.programs, h.Info.BPF, h.Info.UnixHooks, h.Info.Tier = p, true, p.UnixHooks(), p.Tier()
}

// Close releases what the host probe opened.
func (h *Host) Close() error {
	err := closeAll(h.system)
	h.system = nil
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
