// Package tally adds up what the processes of a run use, by looking at them in
// /proc: the measure where no cgroup keeps one. What it says is true of an
// instant. It is a soft layer:
//
//   - Between two looks a run may take more, and give it back, unseen.
//   - CPU time of a process that began and ended between two looks counts when its
//     parent waited for it; one whose parent ignores SIGCHLD is not seen.
//   - Memory is what processes have mapped, or hold open as files without a name
//     (memfd_create(2)), and what System V objects hold ([Tally.EnterIPC]). What is in pipes, in
//     sockets and in descriptors under way in a socket is not seen, nor what the kernel keeps for SEM_UNDO:
//     2 bytes for each semaphore of an array, for each process that has asked for it there.
//   - Of a process that is not dumpable (PR_SET_DUMPABLE(2const)) descriptors and io are root's, and where /proc
//     is mounted with hidepid all of it. Who is not root learns that it hides them: [Use.Hidden].
//
// The processes of a PID namespace are the descendants of its first one, and only
// these. They are found by /proc/PID/task/TID/children (Linux 3.5, proc(5)).
package tally

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Tally follows the descendants of one process. Look and Stop wait for each other.
type Tally struct {
	// Writes makes Look count what is written, too.
	Writes bool

	// Within bounds how long a look may take; one that would take longer is [ErrLate]. 0: no bound.
	Within time.Duration

	mu    sync.Mutex
	until time.Time // of this look: when it is late; zero: never
	err   error     // of this look: why it does not see all

	root int
	ipc  *ipc              // nil: what it would say is not counted
	live map[process]spent // by each process itself, when it was last seen
	gone spent             // by those that have ended
	all  spent             // the most that was ever found

	hiding []process // at this look
	brief  bool      // likewise: somebody ended before he was read, each time
	hid    bool      // somebody, or something could not be read, at the look before
}

// ErrLate is the error of a look that would have taken longer than [Tally.Within].
var ErrLate = errors.New("there is more to read in /proc than can be read in time")

// spent is what only grows.
type spent struct {
	cpu   time.Duration
	wrote int64
}

func (s *spent) add(more spent) { s.cpu, s.wrote = s.cpu+more.cpu, s.wrote+more.wrote }

func (s *spent) atLeast(other spent) {
	s.cpu, s.wrote = max(s.cpu, other.cpu), max(s.wrote, other.wrote)
}

// Use is what the processes of a run held or had used at one instant.
type Use struct {
	Tasks  int64         // threads
	Memory int64         // bytes: anonymous and shared memory, memfds, swap, page tables
	CPU    time.Duration // user and system, of ended processes too

	// Written is bytes that were written to files with a disk behind them, in whole pages
	// (write_bytes, proc_pid_io(5)), by ended processes too.
	Written int64

	// Hidden is a process that does not let be read what Memory and Written are made of, when
	// there was one at the look before, too. Not the same one: a process that forks
	// and ends is soon another.
	Hidden Hidden
}

// Hidden names a process; PID 0 is none.
type Hidden struct {
	PID   int
	Name  string // its own choice (proc_pid_comm(5)); "" of one that is unseen
	Whole bool   // /proc does not show it at all, nor its children: tasks and CPU time lack it too
	Brief bool   // it, or another one: its threads or its children end before they are read, each time
}

// process tells a process from later ones with its number.
type process struct {
	pid   int
	start uint64
}

// Supported reports whether the kernel tells the children of a process (CONFIG_PROC_CHILDREN).
func Supported() bool {
	pid := os.Getpid()
	return unix.Access(childrenOf(pid, pid), unix.R_OK) == nil
}

// New follows the descendants of the process root, which itself does not count.
func New(root int) (*Tally, error) {
	if _, err := os.ReadFile(childrenOf(root, root)); err != nil {
		return nil, err
	}
	return &Tally{root: root, live: map[process]spent{}}, nil
}

// Look adds up. Memory that processes share after a fork counts in each of them, as long
// as the sum is within most; beyond it the shares are told apart, which costs
// a walk over their page tables. most of 0 or less is no bound. With an error nothing is known
// of this look; it is of the kind of ENOENT or ESRCH only where the root has ended.
func (t *Tally) Look(most int64) (Use, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hiding, t.brief, t.until = nil, false, time.Time{}
	if t.Within > 0 {
		t.until = time.Now().Add(t.Within)
	}
	u, err := t.look(most)
	if t.until = (time.Time{}); err != nil {
		t.hid = true
		return Use{}, err
	}
	u.Hidden = t.twice()
	return u, nil
}

func (t *Tally) look(most int64) (u Use, err error) {
	var tree spent
	live := map[process]spent{}
	var own, shared int64
	files := memfds{t: t, seen: map[[2]uint64]bool{}}
	root, err := t.walk(func(p *status) bool {
		u.Tasks += int64(p.threads)
		tree.add(spent{p.self + p.waited, t.written(p, true)})
		live[p.process] = spent{p.self, t.written(p, false)}
		return t.through(p, func(dir string) error {
			a, b, err := memoryIn(dir)
			if err == nil {
				own, shared = own+a, shared+b
			}
			return err
		}) && files.of(p)
	})
	if err != nil {
		return u, err
	}
	tree.add(spent{cpu: root.waited}) // of the root nobody but root may read what it wrote
	t.all.atLeast(tree)
	t.all.atLeast(t.seen(live))
	u.CPU, u.Written = t.all.cpu, t.all.wrote
	u.Memory, err = t.sum(own, shared, files.sum+t.sysVIPC(), most)
	return u, err
}

// sum is what is in memory: own that of each process, shared what they have mapped of what they may share, and files what is in files without a name
// and System V objects, mapped or not. The first two count a page in each process that has it, and are told apart where it matters.
func (t *Tally) sum(own, shared, files, most int64) (int64, error) {
	// What is mapped and in a file, too, is in both; the greater of both lacks what is in one alone.
	if sum := own + max(shared, files); most <= 0 || own+shared+files <= most {
		return sum, nil
	}
	own, shared, err := t.shares()
	if sum := own + max(shared, files); err != nil || sum > most || own+shared+files <= most {
		return sum, err
	}
	none, err := t.sharedOfNone()
	return own + max(shared, files+none), err
}

// twice is a process that hides now, if one did at the look before.
func (t *Tally) twice() (h Hidden) {
	if t.hid && len(t.hiding) > 0 {
		h.PID = t.hiding[0].pid
		h.Brief = t.brief
		h.Whole = slices.ContainsFunc(t.hiding, func(p process) bool { return p.start == 0 })
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", h.PID)) // of one that has ended it is empty
		h.Name = strings.TrimSuffix(string(b), "\n")
	}
	t.hid = len(t.hiding) > 0
	return h
}

// written is what a process has written, with the children that it has waited for or without.
func (t *Tally) written(p *status, waited bool) (sum int64) {
	switch {
	case !t.Writes:
	case waited:
		t.through(p, func(dir string) (err error) {
			sum, err = writtenIn(dir + "io") // of all its threads, by whichever
			return err
		})
	default:
		for _, tid := range t.tids(p.pid, p.threads) {
			n, err := writtenIn(fmt.Sprintf("/proc/%d/task/%d/io", p.pid, tid))
			t.refused(p.process, tid, err)
			sum += n
		}
	}
	return sum
}

// seen is what every process spent that was ever seen, each by itself.
func (t *Tally) seen(live map[process]spent) spent {
	for p, self := range t.live {
		if _, ok := live[p]; !ok {
			t.gone.add(self)
		}
	}
	t.live = live
	sum := t.gone
	for _, self := range live {
		sum.add(self)
	}
	return sum
}

// walk calls visit with the descendants, a parent before its children, each as soon as it is found, and returns the root. One that
// ends meanwhile is left out; visit reports false of one that had ended before it was read.
func (t *Tally) walk(visit func(p *status) bool) (root status, err error) {
	t.err = nil
	if root, err = statusOf(t.root); err != nil {
		return root, err
	}
	known := map[int]bool{t.root: true}
	next := []status{root}
	for len(next) > 0 && t.err == nil {
		of := next[len(next)-1]
		next = t.children(&of, known, visit, next[:len(next)-1])
	}
	return root, t.err
}

// childTries bounds how often children are listed again. With one slow CPU one of them ends each second time or more often
// before it has been read, where a shell starts one after the other: that is to look like hiding as good as never.
const childTries = 64

// children visits those of one process and appends them to the list. Where one has ended before it was read another may have
// taken its place, with its memory (CLONE_VM): so they are listed again, until none is new, or all that are have been
// read. Who always ends sooner hides.
func (t *Tally) children(of *status, known map[int]bool, visit func(p *status) bool, list []status) []status {
	for range childTries {
		all := true
		for _, pid := range slices.Backward(t.childrenIn(of.pid, of.threads)) { // the youngest has the most to live
			if known[pid] {
				continue
			}
			if t.late() {
				return list
			}
			p, err := statusOf(pid)
			if err != nil {
				all = t.unseen(pid, err) && all
				continue
			}
			if !known[p.parent] { // it is gone, and the number is another's
				all = false
				continue
			}
			known[pid] = true
			if !p.ended() {
				p.tid = pid
			}
			if p.state == 'Z' && p.threads <= 1 { // else the first thread alone may have ended
				all = false
				continue
			}
			all = visit(&p) && all
			list = append(list, p)
		}
		if all || t.err != nil {
			return list
		}
	}
	t.brief = true
	t.hide(of.process)
	return list
}

// late reports that this look has failed, or takes too long.
func (t *Tally) late() bool {
	if t.err == nil && !t.until.IsZero() && time.Now().After(t.until) {
		t.err = ErrLate
	}
	return t.err != nil
}

// fails notes an error for which this look does not see all: any but that something has ended, or takes a permission.
func (t *Tally) fails(err error) bool {
	if err == nil || isGone(err) || errors.Is(err, os.ErrPermission) {
		return false
	}
	if t.err == nil {
		t.err = err
	}
	return true
}

// isGone reports an error that tells that a process or thread has ended.
func isGone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }

func childrenOf(pid, tid int) string { return fmt.Sprintf("/proc/%d/task/%d/children", pid, tid) }

// childrenIn lists the children of all threads of a process.
func (t *Tally) childrenIn(pid, threads int) []int {
	var out []int
	for _, tid := range t.tids(pid, threads) {
		b, err := os.ReadFile(childrenOf(pid, tid))
		if err != nil {
			t.fails(err)
			continue // it is gone
		}
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

// tids are the threads of a process.
func (t *Tally) tids(pid, threads int) []int {
	if threads == 1 {
		return []int{pid}
	}
	list, err := numbered(fmt.Sprintf("/proc/%d/task", pid))
	t.fails(err) // else it is gone
	return list
}

func numbered(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	out := make([]int, 0, len(entries))
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, n)
		}
	}
	return out, err
}
