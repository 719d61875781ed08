//go:build linux

package notify_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/notify"
	"github.com/agentguard/agentguard/internal/testenv"
)

// What a shell does is told: who, what, with which arguments, what came of it.
func TestExec(t *testing.T) {
	as(t, func(t *testing.T, uid int) {
		w := watch(t, uid, nil, "sh", `cd /usr && bin/env A=1 B=2 /bin/sh -c "exit 7"; /nowhere/prog; (exit 3); kill -TERM $$`)
		sh := w.exec(t, "sh")
		if sh.Outcome != notify.Done || string(sh.Path) != "/bin/sh" || sh.PID == 0 || int(sh.UID) != uid || len(sh.Env) != 2 || string(sh.Env[1]) != "SECRET" {
			t.Errorf("sh: %+v", sh)
		}
		var st unix.Stat_t
		must(unix.Stat("/bin/sh", &st))
		if sh.Image.Inode != st.Ino || sh.Image.Dev != st.Dev || sh.Image.Ctime != st.Ctim.Nano() || len(sh.Image.Path) == 0 {
			t.Errorf("image of sh: %+v", sh.Image)
		}
		env := w.exec(t, "bin/env")
		if env.Outcome != notify.Done || string(env.Path) != "bin/env" || string(env.Dir) != "/usr" || env.PPID != sh.PID || env.ParentStart != sh.Start || len(env.Argv) != 6 {
			t.Errorf("env: %+v", env)
		}
		inner := w.exec(t, "/bin/sh")
		if inner.Outcome != notify.Done || inner.PID != env.PID || inner.Start != env.Start || len(inner.Argv) != 3 {
			t.Errorf("inner sh: %+v", inner)
		}
		if no := w.exec(t, "/nowhere/prog"); no.Outcome != notify.Failed || no.Errno != unix.ENOENT || no.PID == sh.PID {
			t.Errorf("failed: %+v", no)
		}
		wantTree(t, &w, sh.PID)
		ends := map[uint32]unix.WaitStatus{}
		for _, e := range w.of(notify.Exit) {
			ends[e.PID] = e.Status
		}
		if ends[env.PID].ExitStatus() != 7 {
			t.Errorf("env ended with %x", ends[env.PID])
		}
		threes := 0
		for _, s := range ends {
			if s.Exited() && s.ExitStatus() == 3 {
				threes++ // never executed anything, and is told all the same
			}
		}
		if threes != 1 || exitInfoHere() && ends[sh.PID].Signal() != unix.SIGTERM {
			t.Errorf("ends %v\n%s", ends, &w)
		}
	})
}

// wantTree fails unless every process was told to be another's child before
// anything else was told of it.
func wantTree(t *testing.T, w *watched, first uint32) {
	t.Helper()
	known := map[uint32]bool{first: true}
	for _, e := range w.events {
		if e.Type == notify.Fork {
			if known[e.Child.PID] {
				t.Errorf("process %d was seen twice for the first time", e.Child.PID)
			}
			known[e.Child.PID] = true
		}
		if !known[e.PID] {
			t.Errorf("who is %d?\n%s", e.PID, w)
		}
	}
}

// exitInfoHere reports whether this kernel keeps the status of who was killed.
func exitInfoHere() bool { return since(6, 15) }

// since reports whether this kernel is that version or a later one.
func since(wantMajor, wantMinor int) bool {
	var u unix.Utsname
	must(unix.Uname(&u))
	var major, minor int
	_, _ = fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return major > wantMajor || major == wantMajor && minor >= wantMinor
}

func TestBadExec(t *testing.T) {
	as(t, func(t *testing.T, uid int) {
		w := watch(t, uid, nil, "badexec")
		var execs []notify.Event
		for _, e := range w.events {
			if e.Type == notify.Exec {
				execs = append(execs, e)
			}
		}
		if len(execs) != 4 {
			t.Fatalf("%d execs\n%s", len(execs), &w)
		}
		if e := execs[0]; !e.Unreadable || e.Errno != unix.EFAULT || len(e.Path) > 0 || e.Outcome != notify.Failed || !e.Launcher {
			t.Errorf("unreadable path: %+v", e)
		}
		if e := execs[1]; string(e.Path) != "/nowhere/prog" || !e.ArgvCut || !e.EnvCut || len(e.Argv) > 0 || e.Outcome != notify.Failed {
			t.Errorf("unreadable arguments: %+v", e)
		}
		if e := execs[2]; !e.Cut || e.Errno != unix.ENAMETOOLONG || len(e.Path) != unix.PathMax || e.Outcome != notify.Failed {
			t.Errorf("long path: cut %v, %d bytes, outcome %d", e.Cut, len(e.Path), e.Outcome)
		}
		if e := execs[3]; !e.ArgvCut || len(e.Argv) != 2 || e.Argc != 3 || e.Outcome != notify.Done || e.Launcher {
			t.Errorf("huge arguments: cut %v, %d of at least %d, outcome %d, launcher %v", e.ArgvCut, len(e.Argv), e.Argc, e.Outcome, e.Launcher)
		}
	})
}

// A directory that has no name any more is said to have none.
func TestDeletedDirectory(t *testing.T) {
	w := watch(t, os.Getuid(), nil, "sh", `d=$(mktemp -d) && cd $d && rmdir $d && ./prog; /bin/true`)
	e := w.exec(t, "./prog")
	if !e.DirDeleted || strings.Contains(string(e.Dir), "(deleted)") || !strings.HasPrefix(string(e.Dir), "/") || e.Outcome != notify.Failed {
		t.Errorf("%+v", e)
	}
}

// What is refused has the errno of the answer, and its repetitions are counted.
func TestRefused(t *testing.T) {
	as(t, func(t *testing.T, uid int) {
		w := watch(t, uid, nil, "refused")
		if !strings.HasPrefix(w.text, strings.Repeat("operation not permitted\n", 7)+"true\n") {
			t.Fatal(w.text)
		}
		var got []string
		for _, e := range w.events {
			if e.Type != notify.Exit && e.Type != notify.Fork {
				got = append(got, fmt.Sprintf("%d %d %v %s %s %d %d", e.Type, e.NR, e.Errno, e.Dir, e.Path, e.Count, len(e.Addr)))
			}
		}
		want := []string{
			fmt.Sprintf("%d %d operation not permitted  /dev/swap 0 0", notify.Refused, unix.SYS_SWAPON),
			fmt.Sprintf("%d %d operation not permitted  /dev/swap 4 0", notify.Refused, unix.SYS_SWAPON),
			fmt.Sprintf("%d %d operation not permitted /usr bin/prog 0 0", notify.Refused, unix.SYS_FCHMODAT),
			fmt.Sprintf("%d %d operation not permitted   0 0", notify.Refused, unix.SYS_SOCKET),
			fmt.Sprintf("%d %d errno 0   0 16", notify.Send, unix.SYS_SENDTO),
			fmt.Sprintf("%d %d errno 0   0 16", notify.Connect, unix.SYS_CONNECT),
			fmt.Sprintf("%d %d errno 0   0 16", notify.Bind, unix.SYS_BIND),
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// Who calls waits, so nothing is lost: the count is exact.
func TestStorm(t *testing.T) {
	n := 20000
	if testing.Short() { // an emulated machine
		n = 1000
	}
	as(t, func(t *testing.T, uid int) {
		w := watch(t, uid, nil, "storm", fmt.Sprint(n))
		wantExecs(t, &w, n, notify.Failed)
	})
}

func wantExecs(t *testing.T, w *watched, n int, o notify.Outcome) {
	t.Helper()
	got, other := 0, 0
	for _, e := range w.events {
		if e.Type == notify.Exec {
			got++
			if e.Outcome != o {
				other++
			}
		}
	}
	if got != n || other > 0 {
		t.Errorf("%d execs told, %d made; %d with another outcome", got, n, other)
	}
}

// A signal neither loses a call that waits nor has it told twice.
func TestSignals(t *testing.T) {
	if _, killable := notify.InstallFlags(); !killable {
		t.Log("before Linux 5.19 a signal has a call told twice")
		return
	}
	const n = 2000
	w := watch(t, os.Getuid(), nil, "signals", fmt.Sprint(n))
	if got := len(w.ofAll(notify.Exec)); !since(6, 18) && got > n && got < n+n/10 {
		t.Logf("%d of %d were told twice", got-n, n) // see InstallFlags
		return
	}
	wantExecs(t, &w, n, notify.Failed)
}

// Real programs: each is told with its image and its end, and no more is kept of
// them than the bound says.
func TestPrograms(t *testing.T) {
	n := 200
	if testing.Short() {
		n = 60
	}
	for bound, untracked := range map[string]bool{"": false, "1": true} {
		w := watch(t, os.Getuid(), []string{boundEnv + "=" + bound}, "sh", fmt.Sprintf(`i=0; while [ $i -lt %d ]; do /bin/true $i; i=$((i+1)); done`, n))
		trues, known, ends := 0, 0, 0
		for _, e := range w.of(notify.Exec) {
			if string(e.Path) == "/bin/true" {
				trues++
				if e.Outcome == notify.Done {
					known++
				}
			}
		}
		for _, e := range w.of(notify.Exit) {
			if e.StatusKnown && e.Status == 0 {
				ends++
			}
		}
		if trues != n || ends != n+1 || (known == n) == untracked || (w.stats.Untracked > 0) != untracked {
			t.Errorf("bound %q: %d execs, %d with an image, %d ends, %+v", bound, trues, known, ends, w.stats)
		}
	}
}

// Without randomized addresses a program that executes itself looks as if it had not:
// nobody says that it failed.
func TestFixedAddresses(t *testing.T) {
	as(t, func(t *testing.T, uid int) {
		w := watch(t, uid, nil, "fixed")
		told := ""
		for _, e := range w.of(notify.Exec) {
			if len(e.Argv) == 5 {
				told += string(e.Argv[4])
				if e.Outcome == notify.Failed {
					t.Errorf("it did happen: %+v", e)
				}
			} else if string(e.Path) == "/nowhere/x" && e.Outcome == notify.Done {
				t.Errorf("it did not happen: %+v", e)
			}
		}
		if told != "abc" {
			t.Errorf("%q\n%s", told, &w)
		}
	})
}

// The first of them is answered when all wait.
func TestThreads(t *testing.T) {
	const n = 500
	as(t, func(t *testing.T, uid int) {
		w := watch(t, uid, nil, "threads", fmt.Sprint(n))
		got, pids := 0, map[uint32]bool{}
		for _, e := range w.events {
			if e.Type == notify.Connect {
				got++
				pids[e.PID] = true
			}
		}
		if got != n || len(pids) != 1 || w.text != "" {
			t.Errorf("%d connects of %d processes, want %d of one\n%s", got, len(pids), n, w.text)
		}
	})
}

func TestProbe(t *testing.T) {
	if err := notify.Probe(); err != nil {
		testenv.Missing(t, "seccomp", err.Error())
	}
}

// The command gets no listener of its own, and nothing by a filter that asks.
func TestOwnListener(t *testing.T) {
	w := watch(t, os.Getuid(), nil, "listener")
	busy := strings.Repeat("device or resource busy\n", 3) + "a seccomp filter with a listener: device or resource busy\n"
	if w.text != fmt.Sprintf("%s%v %v\n%v\n", busy, unix.Errno(0), unix.ENOSYS, unix.EPERM) {
		t.Errorf("victim:\n%s", w.text)
	}
	for _, e := range w.events {
		if e.Type == notify.Exec {
			t.Errorf("an execve was told that was not made: %+v", e)
		}
	}
}

func TestListenerStaysOutside(t *testing.T) {
	w := watch(t, os.Getuid(), nil, "nothing")
	if w.text == "" || strings.Contains(w.text, "seccomp") {
		t.Error(w.text)
	}
}

// A caller that is killed while it waits has made no call; nothing is read of who
// may have its pid.
func TestKilledWhileItWaits(t *testing.T) {
	w := watch(t, os.Getuid(), nil, "killed")
	for _, e := range w.events {
		if e.Type != notify.Exit {
			t.Errorf("told: %+v", e)
		}
	}
	if w.stats.Gone != 1 {
		t.Errorf("%+v\n%s", w.stats, w.text)
	}
}

// A listener that dies lets nothing by: what was asked about fails, the rest goes on.
func TestListenerDies(t *testing.T) {
	w := watch(t, os.Getuid(), []string{"AGENTGUARD_NOTIFY_DEAF=1"}, "deaf")
	if want := fmt.Sprintln(unix.ENOSYS, unix.ENOSYS, unix.ENOSYS, unix.Errno(0)); w.text != want {
		t.Errorf("%q", w.text)
	}
}
