package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// row is one contestant and its times.
type row struct {
	name  string
	argv  []string
	env   []string            // besides what all have
	user  *syscall.Credential // nil: who measures
	times []time.Duration
}

// measure runs every row once a round. Each round begins with another row, so
// that none always follows the same neighbour. Before each run the machine has a rest, in
// which a helper makes what it keeps in reserve: else that were in the row after it.
func measure(rows []*row, rounds int, rest time.Duration) error {
	warm := rounds/10 + 1
	for i := range warm + rounds {
		for k := range rows {
			r := rows[(i+k)%len(rows)]
			time.Sleep(rest)
			took, err := once(r, os.Stderr)
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			if i >= warm {
				r.times = append(r.times, took)
			}
		}
	}
	return nil
}

// once runs a row's argv (an absolute path first) with no input and no output but stderr and
// returns the time from before the fork until its status has been read.
func once(r *row, stderr *os.File) (time.Duration, error) {
	argv := r.argv
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	// syscall.ForkExec is clone(CLONE_VFORK|CLONE_VM) and execve on Linux: os/exec would add
	// its pidfd, its goroutines and its environment handling to every row.
	attr := &syscall.ProcAttr{
		Env:   append([]string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"}, r.env...),
		Sys:   &syscall.SysProcAttr{Credential: r.user},
		Files: []uintptr{null.Fd(), null.Fd(), stderr.Fd()},
	}
	start := time.Now()
	pid, err := syscall.ForkExec(argv[0], argv, attr)
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", argv[0], err)
	}
	var status syscall.WaitStatus
	for {
		_, err = syscall.Wait4(pid, &status, 0, nil)
		if err != syscall.EINTR {
			break
		}
	}
	took := time.Since(start)
	if err != nil {
		return 0, fmt.Errorf("wait for %s: %w", argv[0], err)
	}
	if status != 0 {
		return 0, fmt.Errorf("%s: wait status %#x", strings.Join(argv, " "), int(status))
	}
	return took, nil
}
