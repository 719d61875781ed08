package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// One call, made again and again by a process of three kinds: no run lives on
// the machine; one lives, and the process is none of its; the process is of a
// run. The second is what observation costs a bystander.

// callFiles is how many files are opened in turn: more than a thread's memory
// in the kernel has room for, so that each open makes a record.
const callFiles = 300

// call is what is repeated; the working directory has the files f0, f1, ...
type call struct {
	name string
	do   func(i int) error
}

var calls = []call{
	{"getppid", func(int) error { unix.Getppid(); return nil }},
	{"open+close, one file", func(int) error { return openClose("f0") }},
	{"open+close, different files", func(i int) error { return openClose("f" + strconv.Itoa(i%callFiles)) }},
	{"open of no file", func(int) error {
		if _, err := unix.Open("missing", unix.O_RDONLY, 0); err != unix.ENOENT {
			return fmt.Errorf("open: %v", err)
		}
		return nil
	}},
	{"fork+exec+wait of /bin/true", func(int) error {
		pid, err := syscall.ForkExec("/bin/true", []string{"true"}, nil)
		if err != nil {
			return err
		}
		_, err = syscall.Wait4(pid, nil, 0, nil)
		return err
	}},
}

func openClose(name string) error {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// repeat is the act of the process that is measured: a line for each call, ns.
// Of several batches the fastest counts: the others were disturbed.
func repeat(out io.Writer) error {
	for _, c := range calls {
		best := time.Duration(1 << 62)
		for n, batch := 1, 0; batch < 5; {
			start := time.Now()
			for i := range n {
				if err := c.do(i); err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
			}
			took := time.Since(start)
			if took < 20*time.Millisecond && batch == 0 {
				n *= 2
				continue
			}
			best = min(best, took/time.Duration(n))
			batch++
		}
		fmt.Fprintln(out, best.Nanoseconds())
	}
	return nil
}

// caller is one kind of process, and what its calls took: of each round, of each call.
type caller struct {
	name  string
	argv  []string
	live  bool // beside a run of somebody else
	alone bool // by a user without root and without the helper: told by the command's own filter
	times [][]time.Duration
}

// measureCalls prints what each call takes each kind of process.
func measureCalls(o *observers, dir string, rounds int, limit time.Duration) error {
	work := filepath.Join(dir, "work")
	self, err := stage(work)
	if err != nil {
		return err
	}
	act := []string{self, "-act"}
	callers := []*caller{
		{name: "no run lives", argv: act},
		{name: "bystander of a run", argv: act, live: true},
		{name: "in a run", argv: o.sandbox(dir, act)},
		{name: "in a run, --trace changes", argv: o.sandbox(dir, act, "--trace", "changes")},
	}
	if alone, err := tryAlone(o, dir); err != nil {
		fmt.Fprintf(os.Stderr, "record: without the helper there is no run here (%v): its row is left out\n", err)
	} else {
		callers = append(callers, alone)
		alone.argv = append(alone.argv, act...)
	}
	begun := time.Now()
	for i := 0; i < rounds && (i < minRounds || time.Since(begun) < limit); i++ {
		for k := range callers {
			if err := callers[(i+k)%len(callers)].once(o, dir); err != nil {
				return err
			}
		}
	}
	fmt.Printf("one call: ns, medians; x of what it takes while no run lives; %d rounds\n", len(callers[0].times))
	if err := callTable(os.Stdout, callers); err != nil {
		return err
	}
	return eventCosts(os.Stdout, filepath.Join(dir, "state"))
}

// aloneUser is somebody without root.
const aloneUser = 61234

// tryAlone returns the caller without root and without the helper, to which the command is to be
// added, when it can run one.
func tryAlone(o *observers, dir string) (*caller, error) {
	home := filepath.Join(dir, "home")
	err := os.MkdirAll(home, 0o700)
	if os.Geteuid() == 0 {
		err = errors.Join(err, os.Chown(home, aloneUser, aloneUser))
	}
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(o.agentguard) // where that user reaches it
	if err != nil {
		return nil, err
	}
	own := filepath.Join(dir, "agentguard")
	if err := os.WriteFile(own, program, 0o755); err != nil {
		return nil, err
	}
	c := &caller{name: "in a run without the helper", alone: true, argv: []string{
		own, "exec", "-q", "--without-helper", "--state", filepath.Join(home, "state"), "-w", filepath.Join(dir, "work"), "--mode", "ro", "--",
	}}
	cmd := exec.Command(own, append(c.argv[1:len(c.argv):len(c.argv)], "true")...)
	cmd.Dir = dir
	c.become(cmd, dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %.300s", err, out)
	}
	return c, nil
}

// become makes cmd that of the user without root.
func (c *caller) become(cmd *exec.Cmd, dir string) {
	if !c.alone || os.Geteuid() != 0 {
		return
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: aloneUser, Gid: aloneUser}}
	cmd.Env = append(os.Environ(), "HOME="+filepath.Join(dir, "home"))
}

// stage puts this program and the files into the workspace.
func stage(work string) (self string, err error) {
	if err := os.MkdirAll(work, 0o755); err != nil {
		return "", err
	}
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return "", err
	}
	self = filepath.Join(work, "act")
	err = os.WriteFile(self, program, 0o755)
	for i := range callFiles {
		err = errors.Join(err, os.WriteFile(filepath.Join(work, "f"+strconv.Itoa(i)), nil, 0o644))
	}
	return self, err
}

func (c *caller) once(o *observers, dir string) (err error) {
	if c.live {
		end, err := someRun(o, dir)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	cmd := exec.Command(c.argv[0], c.argv[1:]...)
	cmd.Dir, cmd.Stderr = filepath.Join(dir, "work"), os.Stderr
	c.become(cmd, dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	times := make([]time.Duration, len(calls))
	var bad error
	for i := range times {
		if _, err := fmt.Fscan(out, &times[i]); err != nil {
			bad = err
			break
		}
	}
	c.times = append(c.times, times)
	if err := errors.Join(bad, cmd.Wait()); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// someRun starts a run that does nothing until end is called.
func someRun(o *observers, dir string) (end func() error, err error) {
	argv := o.sandbox(dir, []string{"/bin/sh", "-c", "echo; cat"})
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := bufio.NewReader(out).ReadByte(); err != nil {
		return nil, errors.Join(fmt.Errorf("the run did not begin: %w", err), in.Close(), cmd.Wait())
	}
	return func() error { return errors.Join(in.Close(), cmd.Wait()) }, nil
}
