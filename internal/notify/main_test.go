//go:build linux

package notify_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/notify"
	"github.com/agentguard/agentguard/internal/seccomp"
	"github.com/agentguard/agentguard/internal/testenv"
)

// A filter cannot be taken off, and the whole is to hold for any user. So the test
// binary runs itself twice: as the watcher, of the wanted user, which starts the
// victim, answers its calls and prints the events as JSON; and as the victim, which
// installs the filter, hands the listener over and does what its part says.
const (
	roleEnv  = "AGENTGUARD_NOTIFY_ROLE"
	boundEnv = "AGENTGUARD_NOTIFY_BOUND" // Config.MaxProcesses
)

// A victim's first goroutine is to be on the process's first thread.
func init() {
	if os.Getenv(roleEnv) != "" {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "watcher":
		runWatcher(os.Args[1:])
	case "program": // what a victim executes
		programs[os.Args[1]](os.Args[2:])
		os.Exit(0)
	case "victim":
		installAndSend()
		victims[os.Args[1]](os.Args[2:])
		os.Exit(0)
	default:
		os.Exit(testenv.Main(m))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func install(filter []byte, flags uintptr) (int, unix.Errno) {
	prog := struct {
		n      uint16
		filter unsafe.Pointer
	}{uint16(len(filter) / 8), unsafe.Pointer(&filter[0])}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	return int(fd), errno
}

// installAndSend puts the filter on and sends its listener by descriptor 3. sendmsg
// is no call that waits.
func installAndSend() {
	must(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	filter, err := (seccomp.Config{}).NotifyFilter()
	must(err)
	flags, _ := notify.InstallFlags()
	fd, errno := install(filter, flags|unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH)
	if errno != 0 {
		panic(errno)
	}
	must(unix.Sendmsg(3, []byte{0}, unix.UnixRights(fd), nil, 0))
	must(unix.Close(fd))
	must(unix.Close(3))
}

// runWatcher prints the events of a victim, then how it ended and what was counted.
func runWatcher(args []string) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(err)
	theirs := os.NewFile(uintptr(pair[1]), "listener")
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleEnv+"=victim")
	cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = []*os.File{theirs}, os.Stderr, os.Stderr
	must(cmd.Start())
	must(theirs.Close())
	oob := make([]byte, 64)
	_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	must(err)
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	must(err)
	fds, err := unix.ParseUnixRights(&msgs[0])
	must(err)
	cfg := notify.Config{Decide: decide(cmd.Process.Pid), Paths: map[int]notify.PathArg{unix.SYS_FCHMODAT: {Path: 1, Dir: 0}, unix.SYS_SWAPON: {Path: 0, Dir: -1}}}
	_, _ = fmt.Sscan(os.Getenv(boundEnv), &cfg.MaxProcesses)
	l, err := notify.New(os.NewFile(uintptr(fds[0]), "listener"), cfg)
	must(err)
	out := json.NewEncoder(os.Stdout)
	served := make(chan error, 1)
	if os.Getenv("AGENTGUARD_NOTIFY_DEAF") != "" { // the listener dies at once
		must(l.Close())
		_ = cmd.Wait() // its status is of no interest
		return
	}
	go func() { served <- l.Serve(func(e *notify.Event) { must(out.Encode(e)) }) }()
	status := cmd.Wait()
	must(l.Stop())
	must(<-served)
	must(out.Encode(l.Stats()))
	must(l.Close())
	if status != nil {
		fmt.Fprintln(os.Stderr, "victim:", status)
	}
}

// decide answers as a supervisor does. sched_setattr(0, 1) kills the caller while it waits.
func decide(victim int) func(int, [6]uint64) unix.Errno {
	var once sync.Once
	return func(nr int, args [6]uint64) unix.Errno {
		if nr == unix.SYS_BIND && args[0] == killMe {
			must(unix.Kill(victim, unix.SIGKILL))
			for { // until the kernel has taken the call back
				b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", victim))
				if err != nil || strings.Contains(string(b), ") Z") {
					return 0
				}
				runtime.Gosched()
			}
		}
		if nr == unix.SYS_CONNECT && args[0] == gather {
			once.Do(func() { waitFor(victim, int(args[1])) })
		}
		return (seccomp.Config{}).DecideNotified(nr, args).Errno()
	}
}

// waitFor waits until so many threads of the victim wait in a connect, the one that is
// answered among them. What is not so after five minutes is told. It looks half of the time at most: with one CPU
// there would be no other left for those that it waits for.
func waitFor(victim, n int) {
	for end := time.Now().Add(5 * time.Minute); ; {
		begun, most := time.Now(), 0
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", victim))
		must(err)
		for _, name := range tasks {
			b, _ := os.ReadFile(name) // the thread may be gone
			if strings.HasPrefix(string(b), fmt.Sprintf("%d 0x%x ", unix.SYS_CONNECT, gather)) {
				most++
			}
		}
		if most >= n {
			return
		}
		if begun.After(end) {
			fmt.Fprintf(os.Stderr, "%d of %d call at once\n", most, n)
			return
		}
		time.Sleep(max(time.Millisecond, time.Since(begun)))
	}
}

// Descriptors of calls that are not answered at once.
const (
	killMe = 0x7ead // of a bind: its caller is killed before
	gather = 0x7eae // of a connect: the first is answered when so many wait
)

// A watched victim and what was told of it.
type watched struct {
	events []notify.Event
	stats  notify.Stats
	text   string // what the victim wrote
}

// as runs f as root, and as a user without any privilege.
func as(t *testing.T, f func(t *testing.T, uid int)) {
	t.Run("user", func(t *testing.T) {
		testenv.Root(t)
		f(t, 61777)
	})
	t.Run("self", func(t *testing.T) { f(t, os.Getuid()) })
}

// watch runs a part of victims.
func watch(t *testing.T, uid int, env []string, part ...string) watched {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", part...)
	cmd.Dir = "/"
	cmd.Env = append(append(os.Environ(), roleEnv+"=watcher"), env...)
	if uid != os.Getuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	var out, text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &text
	if err := cmd.Run(); err != nil {
		t.Fatalf("watcher: %v\n%s", err, text.String())
	}
	w := watched{text: text.String()}
	dec := json.NewDecoder(&out)
	for {
		var raw json.RawMessage
		if err := dec.Decode(&raw); errors.Is(err, io.EOF) {
			return w
		} else if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(raw, []byte(`"Type"`)) {
			must(json.Unmarshal(raw, &w.stats))
			continue
		}
		var e notify.Event
		must(json.Unmarshal(raw, &e))
		w.events = append(w.events, e)
	}
}

// of are the command's events of a type.
func (w *watched) of(types ...notify.Type) []notify.Event {
	var out []notify.Event
	for _, e := range w.events {
		if slices.Contains(types, e.Type) && !e.Launcher {
			out = append(out, e)
		}
	}
	return out
}

// ofAll are those of a type, the launcher's too.
func (w *watched) ofAll(want notify.Type) []notify.Event {
	return slices.DeleteFunc(slices.Clone(w.events), func(e notify.Event) bool { return e.Type != want })
}

// exec is the one execve whose first argument is name.
func (w *watched) exec(t *testing.T, name string) notify.Event {
	t.Helper()
	var found []notify.Event
	for _, e := range w.of(notify.Exec) {
		if len(e.Argv) > 0 && string(e.Argv[0]) == name {
			found = append(found, e)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d execs of %s\n%s", len(found), name, w)
	}
	return found[0]
}

func (w *watched) String() string {
	var b strings.Builder
	for _, e := range w.events {
		fmt.Fprintf(&b, "%d pid %d ppid %d nr %d errno %v launcher %v outcome %d path %q dir %q argv %q image %q status %x %v count %d\n",
			e.Type, e.PID, e.PPID, e.NR, e.Errno, e.Launcher, e.Outcome, e.Path, e.Dir, e.Argv, e.Image.Path, e.Status, e.StatusKnown, e.Count)
	}
	return b.String() + w.text
}
