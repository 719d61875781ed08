//go:build linux && amd64

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guestEnv is the environment a command starts from, before spec.Env.
var guestEnv = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME=/root", "LANG=C.UTF-8", "TERM=dumb", "AGENTGUARD_VM=1",
}

// exitTimeout is timeout(1)'s status for a command that did not end in time.
const exitTimeout = 124

// loopbackUp sets lo up, which the kernel does not do by itself.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("loopback up: %w", err)
	}
	return nil
}

// runCommand runs s with its output on out and returns the exit status as a shell would: 128+n for signal n, 124 when
// the time limit struck, 126 and 127 when it could not be started. As pid 1 it reaps every orphan meanwhile.
func runCommand(s spec, out *os.File) int {
	env := append(guestEnv[:len(guestEnv):len(guestEnv)], s.Env...)
	path, err := lookPath(s.Args[0], env)
	if err != nil {
		fmt.Fprintf(out, "vminit: %v\n", err)
		return 127
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		fmt.Fprintf(out, "vminit: %v\n", err)
		return 126
	}
	defer null.Close()
	pid, err := syscall.ForkExec(path, s.Args, &syscall.ProcAttr{
		Dir: s.Dir, Env: env, Files: []uintptr{null.Fd(), out.Fd(), out.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		fmt.Fprintf(out, "vminit: start %s in %s: %v\n", path, s.Dir, err)
		return 126
	}
	var timedOut atomic.Bool
	if s.Timeout > 0 {
		defer time.AfterFunc(s.Timeout, func() {
			timedOut.Store(true)
			fmt.Fprintf(out, "vminit: %s did not end in %v: killed\n", s.Args[0], s.Timeout)
			_ = unix.Kill(-1, unix.SIGKILL) // everything but pid 1
		}).Stop()
	}
	status := reapUntil(pid)
	if timedOut.Load() {
		return exitTimeout
	}
	return status
}

// lookPath finds a command in the PATH of env: pid 1 has none of its own.
func lookPath(name string, env []string) (string, error) {
	for _, kv := range env { // the last one counts, as in execve's receiver
		if value, ok := strings.CutPrefix(kv, "PATH="); ok {
			if err := os.Setenv("PATH", value); err != nil {
				return "", err
			}
		}
	}
	return exec.LookPath(name)
}

// reapUntil waits for any child until pid ends and returns pid's status.
func reapUntil(pid int) int {
	for {
		var ws unix.WaitStatus
		got, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return exitTimeout // no child left without pid having ended: cannot be
		case got == pid && ws.Exited():
			return ws.ExitStatus()
		case got == pid && ws.Signaled():
			return 128 + int(ws.Signal())
		}
	}
}
