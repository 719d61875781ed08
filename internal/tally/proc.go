package tally

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// status is what /proc/PID/stat says of a process (proc_pid_stat(5)).
type status struct {
	process
	state        byte
	parent       int
	self, waited time.Duration // its own CPU time, and that of children it has waited for
	threads      int
	mapped       bool // it has memory: no kernel thread, and not past exit_mm() of its end
	tid          int  // of walk: the thread that the rest is read by; 0: none was found yet
}

// tick is the unit of CPU times in /proc (USER_HZ).
const tick = 10 * time.Millisecond

// maxBits is as many as a number in the file may have: 87 years in ticks.
const maxBits = 38

func statusOf(pid int) (status, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return status{}, err
	}
	return parseStat(b)
}

// parseStat reads "PID (NAME) STATE PPID ...". The name is the process's own
// choice, and may hold anything.
func parseStat(b []byte) (status, error) {
	head, _, ok := bytes.Cut(b, []byte(" ("))
	end := bytes.LastIndexByte(b, ')')
	if !ok || end < 0 {
		return status{}, fmt.Errorf("not a line of /proc/PID/stat: %q", b)
	}
	f := strings.Fields(string(b[end+1:])) // from the third field on
	if len(f) < 21 || len(f[0]) != 1 {
		return status{}, fmt.Errorf("a line of /proc/PID/stat with %d fields", len(f))
	}
	var n [8]uint64
	var err error
	for i, text := range []string{string(head), f[1], f[11], f[12], f[13], f[14], f[17], f[19]} {
		if n[i], err = strconv.ParseUint(text, 10, maxBits); err != nil {
			return status{}, fmt.Errorf("/proc/PID/stat: %w", err)
		}
	}
	return status{
		process: process{int(n[0]), n[7]}, state: f[0][0], parent: int(n[1]),
		self: time.Duration(n[2]+n[3]) * tick, waited: time.Duration(n[4]+n[5]) * tick, threads: int(n[6]), mapped: f[20] != "0",
	}, nil
}

// memoryIn is what a process has mapped besides files of others: its own, and what may
// be shared with others (RssShmem: memory of System V, tmpfs and memfds).
func memoryIn(dir string) (own, shared int64, err error) {
	b, err := os.ReadFile(dir + "status")
	if err == nil && !bytes.Contains(b, []byte("\nRssAnon:")) {
		err = unix.ESRCH // it has ended
	}
	return kilobytes(b, "RssAnon", "VmSwap", "VmPTE"), kilobytes(b, "RssShmem"), err
}

// sharesIn is the part of a process in what it has mapped. One that does not
// let its map be read (it is becoming another program) has it in full.
func sharesIn(dir string) (own, shared int64, err error) {
	own, shared, err = memoryIn(dir)
	if b, rerr := os.ReadFile(dir + "smaps_rollup"); rerr == nil && len(b) > 0 { // 4.14; the shares 5.4
		tables, terr := os.ReadFile(dir + "status")
		own, shared, err = kilobytes(b, "Pss_Anon", "SwapPss")+kilobytes(tables, "VmPTE"), kilobytes(b, "Pss_Shmem"), terr
	}
	return own, shared, err
}

// shares is what all have mapped, each page once.
func (t *Tally) shares() (own, shared int64, err error) {
	err = t.once(func(dir string) error {
		a, c, err := sharesIn(dir)
		if err == nil {
			own, shared = own+a, shared+c
		}
		return err
	})
	return own, shared, err
}

// once calls read for each memory. In one that a child has in common with its
// parent the shares are those of both: it counts with the parent, which comes first and
// keeps it when the child leaves it by an execve. The processes are found anew: each is read at once, before it can end.
func (t *Tally) once(read func(dir string) error) error {
	counted := map[int]status{}
	_, err := t.walk(func(p *status) bool {
		if parent, ok := counted[p.parent]; ok && sameMemory(&parent, p) {
			counted[p.pid] = *p
			return true
		}
		return t.through(p, func(dir string) error {
			err := read(dir)
			if err == nil {
				counted[p.pid] = *p
			}
			return err
		})
	})
	return err
}

// writtenIn reads a file of proc_pid_io(5).
func writtenIn(name string) (int64, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	_, rest, _ := bytes.Cut(b, []byte("\nwrite_bytes: "))
	digits, _, _ := bytes.Cut(rest, []byte("\n"))
	return strconv.ParseInt(string(digits), 10, 62)
}

// kilobytes adds up lines "KEY: N kB".
func kilobytes(b []byte, keys ...string) int64 {
	var sum int64
	for line := range bytes.Lines(b) {
		key, rest, ok := strings.Cut(string(line), ":")
		if !ok {
			continue
		}
		for _, k := range keys {
			if key != k {
				continue
			}
			if n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 52); err == nil {
				sum += n << 10
			}
		}
	}
	return sum
}
