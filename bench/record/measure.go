package main

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

// row is one contestant and what it took.
type row struct {
	name      string
	argv      []string // an absolute path first
	work      string   // the directory that it runs in
	mute      bool     // what it says on standard error is not shown
	wall, cpu []time.Duration
}

// minRounds are made however long they take.
const minRounds = 3

// measure runs every row once a round, until there were so many rounds or the
// time is over. Each round begins with another row, so that none always follows
// the same neighbour. Before them the first row, which is the native one, runs
// once alone: what it reads is in memory then for all.
func measure(rows []*row, rounds int, limit time.Duration) error {
	if _, _, err := rows[0].once(); err != nil {
		return fmt.Errorf("%s: %w", rows[0].name, err)
	}
	begun := time.Now()
	for i := 0; i < rounds && (i < minRounds || time.Since(begun) < limit); i++ {
		for k := range rows {
			r := rows[(i+k)%len(rows)]
			wall, cpu, err := r.once()
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			r.wall, r.cpu = append(r.wall, wall), append(r.cpu, cpu)
		}
	}
	return nil
}

// once runs the row and returns the time until its status was read, and the
// CPU time of all that was waited for.
func (r *row) once() (wall, cpu time.Duration, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, 0, err
	}
	defer null.Close()
	attr := &syscall.ProcAttr{
		Dir: r.work, Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"},
		Files: []uintptr{null.Fd(), null.Fd(), os.Stderr.Fd()},
	}
	if r.mute {
		attr.Files[2] = null.Fd()
	}
	start := time.Now()
	pid, err := syscall.ForkExec(r.argv[0], r.argv, attr)
	if err != nil {
		return 0, 0, fmt.Errorf("start %s: %w", r.argv[0], err)
	}
	var status syscall.WaitStatus
	var used syscall.Rusage
	for {
		_, err = syscall.Wait4(pid, &status, 0, &used)
		if err != syscall.EINTR {
			break
		}
	}
	wall = time.Since(start)
	if err != nil {
		return 0, 0, fmt.Errorf("wait for %s: %w", r.argv[0], err)
	}
	if status != 0 {
		return 0, 0, fmt.Errorf("wait status %#x", int(status))
	}
	return wall, time.Duration(used.Utime.Nano() + used.Stime.Nano()), nil
}
