package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// hold opens the idle connections, each of which has worked once, and keeps
// them until its standard input ends. It says when half of them and when all are
// there.
func hold(o *options) error {
	in := bufio.NewReader(os.Stdin)
	var keep []net.Conn
	for i := range o.idle {
		if i == 1 { // one is there: the process is warm
			fmt.Println("one")
			if _, err := in.ReadString('\n'); err != nil {
				return err
			}
		}
		c, err := dial(o)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := ping(c); err != nil {
			return err
		}
		keep = append(keep, c)
	}
	fmt.Println("all", len(keep))
	_, err := in.ReadString('\n')
	return err
}

// idleCost reads what the process that dials holds with one and with all
// connections.
func idleCost(w io.Writer, argv []string, n int) error {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	var memory, files [2]int
	for i := range 2 {
		if !lines.Scan() {
			return errors.Join(errors.New("the idle client ended"), cmd.Wait())
		}
		pid, err := childOf(cmd.Process.Pid, "agentguard-net")
		if err != nil {
			return err
		}
		memory[i], files[i] = settled(pid), descriptors(pid)
		if _, err := io.WriteString(in, "\n"); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "%d idle connections, at rest: %d descriptors and %.1f KiB each; the process had %.1f MiB with one and %.1f MiB with all\n",
		n, (files[1]-files[0])/(n-1), float64(memory[1]-memory[0])/float64(n-1), float64(memory[0])/1024, float64(memory[1])/1024)
	return errors.Join(in.Close(), cmd.Wait())
}

// settled is what a process holds when that has not changed any more for some time.
func settled(pid int) int {
	last, since := resident(pid), time.Now()
	for time.Since(since) < 12*time.Second {
		time.Sleep(200 * time.Millisecond)
		if n := resident(pid); n < last {
			last, since = n, time.Now()
		}
	}
	return last
}

// childOf finds the child of a process by its first argument.
func childOf(parent int, arg string) (int, error) {
	for _, pid := range childrenOf(parent) {
		if cmdline, _ := os.ReadFile("/proc/" + pid + "/cmdline"); strings.HasPrefix(string(cmdline), arg+"\x00") {
			return strconv.Atoi(pid)
		}
	}
	return 0, fmt.Errorf("%d has no child %s", parent, arg)
}

// childrenOf lists the children of all of a process's threads (proc_tid_children(5)).
func childrenOf(parent int) []string {
	list, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	var out []string
	for _, name := range list {
		b, _ := os.ReadFile(name) // a thread that is gone has none
		out = append(out, strings.Fields(string(b))...)
	}
	return out
}

// cpuTime is user and system time of a process in ms, by the clock that the
// scheduler counts with (proc_pid_schedstat: nanoseconds on a CPU), over its threads.
func cpuTime(pid int) float64 {
	list, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	var sum float64
	for _, name := range list {
		b, _ := os.ReadFile(name)
		if f := strings.Fields(string(b)); len(f) > 0 {
			ns, _ := strconv.ParseFloat(f[0], 64)
			sum += ns / 1e6
		}
	}
	return sum
}

// resident is VmRSS in KiB (proc_pid_status(5)).
func resident(pid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, _ := strconv.Atoi(strings.Fields(rest)[0])
			return n
		}
	}
	return 0
}

func descriptors(pid int) int {
	list, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(list)
}
