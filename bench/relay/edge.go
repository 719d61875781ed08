package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// socksAt is where the SOCKS relay listens in the namespace of a run.
const socksAt = "127.0.0.1:1080"

// edgeSOCKS starts a SOCKS relay for one run: it listens on the run's own loopback
// and dials from here, as a sandbox with a proxy variable would have it. The client
// is then observed and limited as with the allowlist, and only the relays differ.
func edgeSOCKS(self string) func(run int) (int, func(), error) {
	return func(run int) (int, func(), error) {
		ns, err := namespaceOf(run)
		if err != nil {
			return 0, nil, err
		}
		defer ns.Close()
		l, err := listenIn(ns, socksAt)
		if err != nil {
			return 0, nil, err
		}
		defer l.Close()
		cmd := exec.Command(self, "-mode", "socks")
		cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{l}
		_, pid, stop, err := begin(cmd)
		return pid, stop, err
	}
}

// namespaceOf opens the network namespace of a run by its supervisor's child that
// is not in this one: the run's first process.
func namespaceOf(supervisor int) (*os.File, error) {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	for _, pid := range childrenOf(supervisor) {
		name := filepath.Join("/proc", pid, "ns/net")
		if ns, err := os.Readlink(name); err == nil && ns != own {
			return os.Open(name)
		}
	}
	return nil, fmt.Errorf("%d has no child in a namespace of its own", supervisor)
}

// listenIn makes a listener in a network namespace, on a thread that ends with the work.
func listenIn(ns *os.File, addr string) (f *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return
		}
		var l net.Listener
		if l, err = net.Listen("tcp4", addr); err == nil {
			f, err = l.(*net.TCPListener).File()
			l.Close()
		}
	}()
	<-done
	return f, err
}
