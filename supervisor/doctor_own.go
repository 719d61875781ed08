package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/codewatch"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/trace"
)

func (x *examination) recording() {
	r := &x.record
	x.try("record", "programs", fmt.Sprintf("tracing programs load and attach, and reported %d events of a probe process", r.events),
		r.err, cellMissing, x.bpfRemedy()+"; or accept runs without a record: --allow-gap record")
	switch {
	case !x.root:
		x.say("record", "tier", cellUnknown, errRoot.Error(), rootRemedy)
		return
	case r.err != nil:
		x.say("record", "tier", cellUnknown, "there is no record on this host: see record programs", "")
		return
	}
	finding := "tracepoints and cgroup programs"
	for _, more := range []struct{ ability, gives string }{
		{"fentry", "names as the kernel has looked them up (fentry)"},
		{"landlock", "refusals as Landlock tells them (its tracepoints, Linux 7.3)"},
	} {
		if err := r.support.Err(more.ability); err != nil {
			finding += "; not: " + more.gives + ": " + oneLine(err.Error())
		} else {
			finding += "; " + more.gives
		}
	}
	x.try("record", "code", "an execve can be held while its file is hashed", tryExecEvents(), cellThin,
		"root with CAP_SYS_ADMIN and a kernel with CONFIG_FANOTIFY_ACCESS_PERMISSIONS=y; until then code is hashed when it is reported, not before it runs")
	x.say("record", "tier", cellOK, finding+"; LSM list: "+lsmText(r.support.LSMs), "")
}

// tryExecEvents makes the group that holds an execve.
func tryExecEvents() error {
	w := codewatch.New(codewatch.Config{Limits: codewatch.DefaultLimits})
	return errors.Join(w.Err(), w.Close())
}

func lsmText(list []string) string {
	if list == nil {
		return "not to be read"
	}
	return oneLine(strings.Join(list, ","))
}

const seeTree = "see limits cgroup tree"

// bpfRemedy says what programs need that do not load.
func (x *examination) bpfRemedy() string {
	if errors.Is(x.record.err, errNoTree) {
		return seeTree
	}
	if !exists("/sys/kernel/btf/vmlinux") {
		return "a kernel with CONFIG_DEBUG_INFO_BTF=y, CONFIG_BPF_SYSCALL=y and CONFIG_CGROUP_BPF=y; /sys mounted"
	}
	return "root with CAP_SYS_ADMIN in the initial user namespace, no seccomp profile that refuses bpf(2), no lockdown=confidentiality, " +
		"and a kernel with CONFIG_BPF_SYSCALL=y and CONFIG_CGROUP_BPF=y"
}

// own examines what agentguard itself keeps on the host.
func (x *examination) own() {
	x.runtime()
	x.initProgram()
	x.state()
	x.debris()
}

func (x *examination) runtime() {
	dir := runtimeDir()
	err := privateDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		err = x.asRoot(func() error {
			return os.NewSyscallError("access "+filepath.Dir(dir), unix.Faccessat(unix.AT_FDCWD, filepath.Dir(dir), unix.W_OK, unix.AT_EACCESS))
		})
	}
	x.try("agentguard", "runtime directory", dir+" holds pinned programs and locks, and belongs to root alone", err, cellMissing,
		"make "+filepath.Dir(dir)+" writable to root, and remove a "+dir+" that is not root's")
}

// privateDir refuses what the probe of a run refuses.
func privateDir(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != 0 || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not a directory that only root can write", dir)
	}
	return nil
}

// initProgram tells from where the first program of a run is started.
func (x *examination) initProgram() {
	fd, err := unix.MemfdCreate("agentguard-doctor", unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before 6.3 every memfd can be executed
		fd, err = unix.MemfdCreate("agentguard-doctor", unix.MFD_CLOEXEC)
	}
	if err == nil {
		unix.Close(fd)
		x.say("agentguard", "init program", cellOK, "started from a sealed memfd", "")
		return
	}
	place := filepath.Dir(runtimeDir())
	var fs unix.Statfs_t
	if serr := unix.Statfs(place, &fs); serr != nil || fs.Flags&unix.ST_NOEXEC != 0 {
		x.say("agentguard", "init program", cellMissing, oneLine("memfd_create: "+err.Error()+"; and "+place+" is mounted noexec"),
			"sysctl -w vm.memfd_noexec=0, or mount -o remount,exec "+place)
		return
	}
	x.say("agentguard", "init program", cellThin, "vm.memfd_noexec forbids memfds: it is started from a file in "+runtimeDir()+", and mapped ids are not to be had",
		"sysctl -w vm.memfd_noexec=0")
}

// lowSpace is how little room in the state directory is worth a word: a run's
// output copies and trace may take more.
const lowSpace = 256 << 20

func (x *examination) state() {
	const remedy = "choose another place with --state DIR"
	path, err := runs.DefaultPath(os.Getuid(), os.Getenv)
	if err != nil {
		x.say("agentguard", "state directory", cellMissing, oneLine(err.Error()), remedy)
		return
	}
	finding, free, err := judgeState(path)
	if err != nil {
		x.say("agentguard", "state directory", cellMissing, oneLine(err.Error()), remedy)
		return
	}
	finding += fmt.Sprintf(", %d MiB free", free>>20)
	if free < lowSpace {
		x.say("agentguard", "state directory", cellThin, finding+": a run's record may not fit", "make room, or "+remedy)
		return
	}
	x.say("agentguard", "state directory", cellOK, finding, "")
}

// judgeState opens the state directory as a run does when that makes nothing,
// and else asks whether it could be made. free is in bytes.
func judgeState(path string) (finding string, free uint64, err error) {
	finding = trace.Quote(path) + " can be made by the first run"
	at := path
	if exists(filepath.Join(path, "runs")) {
		s, err := runs.OpenState(path, os.Getuid())
		if err != nil {
			return "", 0, err
		}
		finding = trace.Quote(s.Path()) + " is private and usable"
		if err := s.Close(); err != nil {
			return "", 0, err
		}
	}
	for !exists(at) {
		at = filepath.Dir(at)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, at, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return "", 0, fmt.Errorf("%s cannot be written: %w", trace.Quote(at), err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(at, &fs); err != nil {
		return "", 0, fmt.Errorf("statfs %s: %w", trace.Quote(at), err)
	}
	return finding, fs.Bavail * uint64(fs.Bsize), nil
}

// debris looks for what killed supervisors left. Only root can tell, since the
// locks of living ones are root's.
func (x *examination) debris() {
	if !x.root {
		x.say("agentguard", "debris", cellUnknown, "only root can tell live runs from dead ones", rootRemedy)
		return
	}
	dead, err := x.leftBehind()
	switch {
	case len(dead) > 0:
		x.say("agentguard", "debris", cellThin, oneLine(fmt.Sprintf("%d cgroups of dead supervisors: %s", len(dead), strings.Join(dead, " "))),
			"the next run removes them")
	case err != nil:
		x.say("agentguard", "debris", cellUnknown, oneLine(err.Error()), "mount the cgroup file systems again")
	default:
		x.say("agentguard", "debris", cellOK, "nothing of dead runs is left", "")
	}
}
