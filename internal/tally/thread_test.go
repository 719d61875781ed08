package tally

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// What the test binary does as a process that is looked at.
const (
	actVariable = "AGENTGUARD_TALLY_ACT"
	actEnd      = "end"     // its first thread ends
	actWriteEnd = "write"   // likewise, and another one writes to a file
	actApart    = "apart"   // a thread has a memfd in a table of its own
	actShare    = "share"   // has a child in its own memory
	actPrivate  = "private" // has a child that has all of its memory again
	actBytes    = 40_000_000
)

func init() {
	if os.Getenv(actVariable) != "" {
		runtime.LockOSThread() // main is on the first thread
	}
}

func TestMain(m *testing.M) {
	switch act := os.Getenv(actVariable); act {
	case "":
		os.Exit(testenv.Main(m))
	case actEnd, actWriteEnd:
		go goOn(act)
		_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // the runtime takes it for a call that lasts
	case actApart:
		haveApart()
	case actShare, actPrivate:
		haveChild(act)
	}
}

// goOn takes memory, a memfd and CPU time once the first thread is no more.
func goOn(act string) {
	for s, err := statusOf(os.Getpid()); err != nil || s.state != 'Z'; s, err = statusOf(os.Getpid()) {
		time.Sleep(time.Millisecond)
	}
	b := touched()
	fd, err := unix.MemfdCreate("x", 0)
	for n := 0; err == nil && n < actBytes; n += 1_000_000 {
		_, err = unix.Write(fd, b[:1_000_000])
	}
	if err == nil && act == actWriteEnd {
		_, err = os.Stdin.Write(b[:3_000_000])
	}
	var used unix.Rusage
	for err == nil && time.Duration(used.Utime.Nano()) < 10*tick {
		err = unix.Getrusage(unix.RUSAGE_SELF, &used)
	}
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println("ready")
	for {
		time.Sleep(time.Hour)
		runtime.KeepAlive(b)
	}
}

// haveApart writes to a memfd that only one thread has, which is not the first.
func haveApart() {
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FILES)
		fd := -1
		if err == nil {
			fd, err = unix.MemfdCreate("x", unix.MFD_CLOEXEC)
		}
		for n, b := 0, make([]byte, 1_000_000); err == nil && n < actBytes; n += len(b) {
			_, err = unix.Write(fd, b)
		}
		if err != nil {
			fmt.Println(err)
		}
		fmt.Println("ready")
		select {}
	}()
	for {
		time.Sleep(time.Hour)
	}
}

// touched is memory outside the heap, which the race detector keeps no shadow of.
func touched() []byte {
	b, err := unix.Mmap(-1, 0, actBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		fmt.Println(err)
	}
	for i := range b {
		b[i] = 1
	}
	return b
}

func haveChild(act string) {
	b := touched()
	fmt.Println("ready")
	flags := uintptr(unix.SIGCHLD)
	if act == actShare {
		flags |= unix.CLONE_VM | unix.CLONE_VFORK
	}
	pid, _, _ := unix.RawSyscall(unix.SYS_CLONE, flags, 0, 0)
	for i := 0; pid == 0 && act == actPrivate && i < len(b); i += 4096 {
		b[i]++
	}
	for {
		unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

// acting starts the test binary as a user in the group of the test, without which nobody else may read it; its standard input is a file on a disk, where there is one.
func acting(t *testing.T, act string, uid int) *Tally {
	t.Helper()
	testenv.Root(t)
	if _, err := exec.LookPath("setpriv"); err != nil {
		testenv.Missing(t, "setpriv", err.Error())
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.CreateTemp(".", "written-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(file.Name()) })
	_ = file.Close()
	tally, _ := start(t, fmt.Sprintf("%s=%s GOMAXPROCS=4 GOTRACEBACK=none setpriv --reuid %d --regid 0 --clear-groups --no-new-privs /proc/self/fd/4 4<'%s' 0<>'%s'; :",
		actVariable, act, uid, self, file.Name()))
	return tally
}

// A process whose first thread has ended counts with all that the others take, for root and for its user.
func TestFirstThreadEnded(t *testing.T) {
	const uid = 61781
	for _, looker := range []int{0, uid} {
		t.Run(fmt.Sprint(looker), func(t *testing.T) {
			tally := acting(t, actWriteEnd, uid)
			tally.Writes = true
			look := func() {
				var u Use
				for range 2 {
					for _, most := range []int64{1, 0} {
						var err error
						if u, err = tally.Look(most); err != nil || u.Memory < 2*actBytes || u.Memory > 3*actBytes || u.CPU < 5*tick || u.Tasks < 2 || u.Hidden.PID != 0 {
							t.Errorf("%+v, %v", u, err)
						}
					}
				}
				if u.Written == 0 {
					testenv.Beyond(t, "disk", "the tests are on a file system without one, or the kernel counts no writes")
				}
				if u.Written < 3e6 {
					t.Errorf("%+v", u)
				}
			}
			if looker == 0 {
				look()
				return
			}
			as(t, looker, look)
		})
	}
}

// It is stopped and let go on like others.
func TestStopFirstThreadEnded(t *testing.T) {
	tally := acting(t, actEnd, 61782)
	states := func() string {
		list, err := tally.list()
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		var b strings.Builder
		for _, tid := range tally.tids(list[0].pid, list[0].threads) {
			if s, err := threadOf(list[0].pid, tid); err == nil && s.state != 'Z' {
				b.WriteByte(s.state)
			}
		}
		return b.String()
	}
	wait := func(ok func(s string) bool) {
		t.Helper()
		for end := time.Now().Add(60 * time.Second); !ok(states()); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%q", states())
			}
		}
	}
	s, err := tally.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if s := states(); s == "" || strings.Trim(s, "T") != "" {
		t.Errorf("%q go on when all were stopped", s)
	}
	if again, err := tally.Stop(); err != nil || len(again.list) > 0 {
		t.Errorf("what stands still was stopped again: %v, %v", again, err)
	}
	if err := s.Continue(); err != nil {
		t.Fatal(err)
	}
	wait(func(s string) bool { return !strings.Contains(s, "T") })
}

// Memory that two processes have in common (vfork(2)) counts once beyond the limit; that of a child which only looks like its parent does not.
func TestOneMemory(t *testing.T) {
	for _, tt := range []struct {
		act         string
		least, most int64
	}{
		{actShare, actBytes, 3 * actBytes / 2},
		{actPrivate, 2 * actBytes, 3 * actBytes},
	} {
		t.Run(tt.act, func(t *testing.T) {
			tally := acting(t, tt.act, 61783)
			until(t, tally, 0, func(u Use) bool { return u.Memory >= 2*actBytes })
			u := until(t, tally, 3*actBytes/2, func(u Use) bool { return u.Memory >= tt.least && u.Memory <= tt.most })
			list, err := tally.list()
			if err != nil || len(list) != 2 {
				t.Errorf("%+v, %v", list, err)
			}
			for range 20 { // it stays so
				if now, err := tally.Look(3 * actBytes / 2); err != nil || now.Memory < tt.least || now.Memory > tt.most {
					t.Fatalf("%+v after %+v, %v", now, u, err)
				}
			}
		})
	}
}

// A list of threads in which all have ended is the only sign that a process has.
func TestAnother(t *testing.T) {
	_, cmd := start(t, "echo ready; sleep 1000; :")
	p, err := statusOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if more, err := p.another(map[int]bool{}); err != nil || !more || p.tid != p.pid {
		t.Errorf("%+v", p)
	}
	if more, err := p.another(map[int]bool{p.pid: true}); err != nil || more || p.tid != 0 {
		t.Errorf("%+v", p)
	}
	late := p
	late.start++
	if more, err := late.another(map[int]bool{}); err != nil || more {
		t.Error("another process with the number is taken for it")
	}
	tally, p2 := &Tally{}, p
	tally.through(&p2, func(string) error { return unix.EACCES })
	if len(tally.hiding) != 1 || tally.hiding[0] != p.process {
		t.Errorf("%v", tally.hiding)
	}
}

// What one thread alone has open counts, once, for root and for the process's user.
func TestTableOfAThread(t *testing.T) {
	const uid = 61784
	for _, looker := range []int{0, uid} {
		tally := acting(t, actApart, uid)
		look := func() {
			if u, err := tally.Look(0); err != nil || u.Memory < actBytes || u.Memory > 2*actBytes || u.Hidden.PID != 0 {
				t.Errorf("%+v, %v", u, err)
			}
		}
		if looker == 0 {
			look()
		} else {
			as(t, looker, look)
		}
	}
}

// Only what lives and is not shown hides; where all of it does, that is told.
func TestUnseen(t *testing.T) {
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		pid   int
		err   error
		hides bool
	}{
		{os.Getpid(), os.ErrNotExist, true},
		{os.Getpid(), unix.EPERM, true},
		{os.Getpid(), unix.EMFILE, false},
		{os.Getpid(), unix.ESRCH, false},
		{dead.Process.Pid, os.ErrNotExist, false},
	} {
		tally := &Tally{}
		for range 2 {
			tally.hiding = nil
			tally.unseen(tt.pid, tt.err)
			if h := tally.twice(); h.Whole != (h.PID == tt.pid) || h.PID != 0 && !tt.hides {
				t.Errorf("%+v: %+v", tt, h)
			}
		}
		if tally.hid != tt.hides {
			t.Errorf("%+v", tt)
		}
	}
}
