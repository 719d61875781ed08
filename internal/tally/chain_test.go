package tally

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// chain is a program of which each process of one memory is born of the one before, which ends: none lives for long.
const chain = `
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static char stacks[3][16384] __attribute__((aligned(16)));
static long n;
static time_t end;
static int next(void *unused) {
	(void)unused;
	n++;
	if (time(NULL) < end) clone(next, stacks[n % 3] + sizeof stacks[0], CLONE_VM | SIGCHLD, NULL);
	_exit(0);
}
int main(void) {
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (fork() == 0) {
		end = time(NULL) + 300;
		memset(mmap(NULL, 200 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 200 << 20);
		write(1, "ready\n", 6);
		next(NULL);
	}
	while (wait(NULL) > 0);
}`

// Memory that goes from process to process, of which none lives until it is read, is counted or told to be hidden.
func TestChain(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		testenv.Missing(t, "gcc", err.Error())
	}
	program := filepath.Join(t.TempDir(), "chain")
	if err := os.WriteFile(program+".c", []byte(chain), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-O1", "-w", "-o", program, program+".c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const most = 64 << 20
	tally, _ := start(t, "exec "+program)
	u := until(t, tally, most, func(u Use) bool { return u.Memory > most || u.Hidden.PID != 0 })
	if u.Hidden.PID != 0 && (!u.Hidden.Brief || u.Hidden.Whole) {
		t.Errorf("%+v", u)
	}
	met := 0
	for i := 0; i < 100; i += 2 { // as the supervisor looks: somebody who hides is told at the second look
		a, aerr := tally.Look(most)
		b, berr := tally.Look(most)
		if aerr != nil || berr != nil {
			t.Fatal(aerr, berr)
		}
		if a.Memory > most || b.Memory > most || b.Hidden.PID != 0 {
			met++
		}
	}
	t.Logf("%d of 50", met)
	if met == 0 {
		t.Error("never again")
	}
}

// Short processes of the usual kind do not hide: once they are listed again they are read.
func TestShort(t *testing.T) {
	const busy = "(while :; do /bin/true; done) & "
	tally, _ := start(t, busy+busy+busy+"echo ready; while :; do (:); done; :")
	for range 100 {
		if u, err := tally.Look(1 << 20); err != nil || tally.brief {
			t.Fatalf("%+v, %v", u, err)
		}
	}
}

// A look that takes too long, or lacks a descriptor, says so and nothing else.
func TestLate(t *testing.T) {
	tally, _ := start(t, "sleep 1000 & echo ready; wait")
	tally.Within = time.Nanosecond
	if u, err := tally.Look(0); !errors.Is(err, ErrLate) || u != (Use{}) {
		t.Errorf("%+v, %v", u, err)
	}
	tally.Within = time.Hour
	if u, err := tally.Look(0); err != nil || u.Tasks != 1 {
		t.Errorf("%+v, %v", u, err)
	}
	for _, tt := range []struct {
		err  error
		told bool
	}{
		{unix.EMFILE, true},
		{unix.ENOMEM, true},
		{unix.ENOENT, false},
		{unix.ESRCH, false},
		{unix.EACCES, false},
		{nil, false},
	} {
		tally.err = nil
		if tally.unseen(1<<30, tt.err); (tally.err != nil) != tt.told {
			t.Errorf("%v: %v", tt.err, tally.err)
		}
		tally.err = nil
		p, err := statusOf(tally.root)
		if err != nil {
			t.Fatal(err)
		}
		p.tid = p.pid
		if tally.through(&p, func(string) error { return tt.err }); (tally.err != nil) != tt.told {
			t.Errorf("%v: %v", tt.err, tally.err)
		}
	}
}
