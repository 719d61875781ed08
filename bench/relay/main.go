// Command relay measures what a connection through an allowlist costs: beside
// plain loopback and beside a SOCKS5 relay in Go that does the same work.
//
//	relay [-agentguard FILE] [-rounds N] [-megabytes N] [-requests N] [-idle N]
//
// All clients live from first to last and take turns, measure by measure: one
// stream down and one up, small requests one after the other on one connection,
// and fresh connections with one request each; each time with the CPU time that
// the process that relays took, which depends least on what else the machine does.
// At the end, what idle connections cost that process, and what a launch costs
// with 1, 100 and 10 000 entries.
//
// The SOCKS relay is there twice: for a client on the host, and at the edge of a
// sandbox without an allowlist, where the client's own calls cost what they cost
// in every run. Ratios are to the second, each taken within its turn: client,
// server and relay share the machine, and its speed changes from one to the next.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
)

type options struct {
	agentguard         string
	rounds             int
	megabytes          int64
	requests, idle     int
	mode, server, sock string // of a child
}

// init keeps the main thread for main: a thread that enters a namespace must end
// with its work, and the main thread does not.
func init() { runtime.LockOSThread() }

func main() {
	var o options
	flag.StringVar(&o.agentguard, "agentguard", "bin/agentguard", "the agentguard binary")
	flag.IntVar(&o.rounds, "rounds", 40, "measured rounds, after one to warm up")
	flag.Int64Var(&o.megabytes, "megabytes", 128, "of each stream")
	flag.IntVar(&o.requests, "requests", 2000, "small requests on one connection; a tenth as many on connections of their own")
	flag.IntVar(&o.idle, "idle", 2000, "idle connections at the end; 0: none")
	flag.StringVar(&o.mode, "mode", "", "what a child of this program is: server, socks, client or idle")
	flag.StringVar(&o.server, "server", "", "of a child: the server's address")
	flag.StringVar(&o.sock, "socks", "", "of a child: the SOCKS relay's address")
	flag.Parse()
	if err := run(&o); err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(1)
	}
}

func run(o *options) error {
	switch o.mode {
	case "server":
		return listen(serve)
	case "socks":
		return listen(serveSOCKS)
	case "client":
		return runClient(o)
	case "idle":
		return hold(o)
	}
	return compare(o)
}

func compare(o *options) error {
	dir, err := os.MkdirTemp("", "agentguard-bench-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	self, err := copySelf(dir)
	if err != nil {
		return err
	}
	server, _, stopServer, err := begin(exec.Command(self, "-mode", "server"))
	if err != nil {
		return err
	}
	defer stopServer()
	socks, socksPID, stopSOCKS, err := begin(exec.Command(self, "-mode", "socks"))
	if err != nil {
		return err
	}
	defer stopSOCKS()
	ag, err := filepath.Abs(o.agentguard)
	if err != nil {
		return err
	}
	child := []string{self, "-mode", "client", "-server", server, "-megabytes", fmt.Sprint(o.megabytes), "-requests", fmt.Sprint(o.requests)}
	closed := []string{ag, "exec", "-q", "--state", filepath.Join(dir, "state"), "-w", filepath.Join(dir, "ws"), "--mode", "ro"}
	open := slices.Concat(closed, []string{"--allow", server, "--"})
	rows := []*row{
		{name: "loopback", argv: child},
		{name: "SOCKS5, client on the host", argv: slices.Concat(child, []string{"-socks", socks}), relay: func(int) (int, func(), error) { return socksPID, func() {}, nil }},
		{name: reference, argv: slices.Concat(closed, []string{"--"}, child, []string{"-socks", socksAt}), relay: edgeSOCKS(self)},
		{name: "allowlist", argv: slices.Concat(open, child), relay: func(run int) (int, func(), error) {
			pid, err := childOf(run, "agentguard-net")
			return pid, func() {}, err
		}},
	}
	if err := measure(rows, o.rounds); err != nil {
		return err
	}
	if err := table(os.Stdout, rows, o); err != nil {
		return err
	}
	if o.idle > 0 {
		if err := idleCost(os.Stdout, slices.Concat(open, []string{self, "-mode", "idle", "-server", server, "-idle", fmt.Sprint(o.idle)}), o.idle); err != nil {
			return err
		}
	}
	return launchCost(os.Stdout, o, dir)
}

func copySelf(dir string) (string, error) {
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "ws", "relay")
	return name, errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Dir(name), 0o755), os.WriteFile(name, b, 0o755))
}

// begin starts a child that listens, and returns where. It ends with stop, or with
// this process.
func begin(cmd *exec.Cmd) (addr string, pid int, stop func(), err error) {
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return "", 0, nil, err
	}
	stop = func() { _ = in.Close(); _ = cmd.Wait() } // what it relays is broken off
	if _, err := fmt.Fscanln(out, &addr); err != nil {
		stop()
		return "", 0, nil, fmt.Errorf("%v: %w", cmd.Args, err)
	}
	return addr, cmd.Process.Pid, stop, nil
}

// listen serves on loopback, or with the listener that it was given as
// descriptor 3, until its standard input ends.
func listen(serve func(net.Conn)) error {
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		l, err = net.Listen("tcp4", "127.0.0.1:0")
	}
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println(l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go serve(c)
	}
}
