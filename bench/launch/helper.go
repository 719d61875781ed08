package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// stagedVar says that this process stands on a stage: a mount namespace in which root's
// records are a tmpfs, so that those of the machine are left alone, and the runs of both
// rows write to the same.
const stagedVar = "AGENTGUARD_BENCH_STAGED"

const records = "/var/lib/agentguard"

// onStage runs this program again on the stage. One run before it makes what the machine
// keeps, such as pinned programs: made on the stage, it would end with it.
func onStage(agentguard string) error {
	if out, err := exec.Command(agentguard, "exec", "-q", "-w", "/usr", "--mode", "ro", "--", "/bin/true").CombinedOutput(); err != nil {
		return fmt.Errorf("the first run: %w: %s", err, out)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), stagedVar+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return cmd.Run()
}

// service is a helper for the row of a user without root.
type service struct {
	cmd    *exec.Cmd
	socket string
}

// startHelper starts it and waits until it listens.
func startHelper(agentguard, dir string) (*service, error) {
	if err := errors.Join(os.MkdirAll(records, 0o700), syscall.Mount("agentguard-bench", records, "tmpfs", 0, "mode=0700")); err != nil {
		return nil, err
	}
	s := &service{exec.Command(agentguard, "helper", "--socket", filepath.Join(dir, "socket")), filepath.Join(dir, "socket")}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(s.socket); err == nil {
			return s, nil
		}
	}
	return nil, errors.Join(errors.New("the helper does not listen"), s.stop())
}

func (s *service) stop() error {
	return errors.Join(s.cmd.Process.Signal(syscall.SIGTERM), s.cmd.Wait())
}

// row is the same command as another row's, by a user through the helper.
func (s *service) row(uid int, argv []string) *row {
	id := uint32(uid)
	return &row{name: "through the helper", argv: argv, env: []string{"AGENTGUARD_SOCKET=" + s.socket}, user: &syscall.Credential{Uid: id, Gid: id}}
}

// together starts n of each row's command at once, several times, and prints how long it
// takes until the last has ended.
func together(w io.Writer, rows []*row, n, rounds int) error {
	fmt.Fprintf(w, "\n%d at once, until the last has ended; milliseconds\n", n)
	all := make([]*row, 0, len(rows))
	for _, r := range rows {
		all = append(all, &row{name: r.name})
	}
	for range rounds {
		for i, r := range rows {
			took, err := crowd(r, n)
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			all[i].times = append(all[i].times, took)
		}
	}
	return table(w, all)
}

func crowd(r *row, n int) (time.Duration, error) {
	start, ended := time.Now(), make(chan error, n)
	for range n {
		go func() {
			_, err := once(r, os.Stderr)
			ended <- err
		}()
	}
	var err error
	for range n {
		err = cmp.Or(err, <-ended)
	}
	return time.Since(start), err
}
