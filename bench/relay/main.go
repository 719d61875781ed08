// Command relay measures what a connection through an allowlist costs: beside
// plain loopback and beside a SOCKS5 relay in Go that does the same work, in
// interleaved rounds.
//
//	relay [-agentguard FILE] [-rounds N] [-megabytes N] [-requests N] [-idle N]
//
// Each round, over each path: one stream down and one up, small requests one
// after the other on one connection, and fresh connections with one request
// each; and the CPU time that the process that relays took for all of it, which
// depends least on what else the machine does. At the end, what idle connections
// cost that process, and what a launch costs with 1, 100 and 10 000 entries. Read
// ratios: client, server and relay share the machine.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"text/tabwriter"
)

type options struct {
	agentguard         string
	rounds             int
	megabytes          int64
	requests, idle     int
	mode, server, sock string // of a child
}

func main() {
	var o options
	flag.StringVar(&o.agentguard, "agentguard", "bin/agentguard", "the agentguard binary")
	flag.IntVar(&o.rounds, "rounds", 5, "measured rounds, after one to warm up")
	flag.Int64Var(&o.megabytes, "megabytes", 256, "of each stream")
	flag.IntVar(&o.requests, "requests", 2000, "small requests of each kind")
	flag.IntVar(&o.idle, "idle", 500, "idle connections at the end; 0: none")
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
		r, err := client(o)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, os.Stdin) // the relay is looked at meanwhile
		return err
	case "idle":
		return hold(o)
	}
	return compare(o)
}

// result is what one client measured over one path.
type result struct {
	Down, Up float64 // MB/s
	Requests float64 // a second, on one connection
	Connect  float64 // microseconds; median
	Fresh    float64 // microseconds: connect, one request, close; median
	CPU      float64 // ms, of the process that relays
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
	server, _, stopServer, err := start(self, "server")
	if err != nil {
		return err
	}
	defer stopServer()
	socks, socksPID, stopSOCKS, err := start(self, "socks")
	if err != nil {
		return err
	}
	defer stopSOCKS()
	child := []string{self, "-mode", "client", "-server", server, "-megabytes", fmt.Sprint(o.megabytes), "-requests", fmt.Sprint(o.requests)}
	inside, err := sandbox(o, dir, server)
	if err != nil {
		return err
	}
	rows := []*row{
		{name: "loopback", argv: child},
		{name: "SOCKS5 in Go", argv: append(child[:len(child):len(child)], "-socks", socks), relay: func(int) (int, error) { return socksPID, nil }},
		{name: "allowlist", argv: append(inside[:len(inside):len(inside)], child...), relay: func(pid int) (int, error) { return childOf(pid, "agentguard-net") }},
	}
	if err := measure(rows, o.rounds); err != nil {
		return err
	}
	if err := table(os.Stdout, rows, o.rounds); err != nil {
		return err
	}
	if o.idle > 0 {
		if err := idleCost(os.Stdout, append(inside, self, "-mode", "idle", "-server", server, "-idle", fmt.Sprint(o.idle)), o.idle); err != nil {
			return err
		}
	}
	return launchCost(os.Stdout, o, dir)
}

// sandbox is the command line that leads a client to the server by the allowlist.
func sandbox(o *options, dir, server string) ([]string, error) {
	ag, err := filepath.Abs(o.agentguard)
	return []string{ag, "exec", "-q", "--state", filepath.Join(dir, "state"), "-w", filepath.Join(dir, "ws"), "--mode", "ro", "--allow", server, "--"}, err
}

func copySelf(dir string) (string, error) {
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "ws", "relay")
	return name, errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Dir(name), 0o755), os.WriteFile(name, b, 0o755))
}

// start runs a child that listens, and returns where.
func start(self, mode string) (addr string, pid int, stop func(), err error) {
	cmd := exec.Command(self, "-mode", mode)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", 0, nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", 0, nil, err
	}
	stop = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() } // it ends no other way
	if _, err := fmt.Fscanln(out, &addr); err != nil {
		stop()
		return "", 0, nil, fmt.Errorf("%s: %w", mode, err)
	}
	return addr, cmd.Process.Pid, stop, nil
}

func listen(serve func(net.Conn)) error {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go serve(c)
	}
}

type row struct {
	name  string
	argv  []string
	relay func(pid int) (int, error) // the process that relays for the client; nil: none
	got   []result
}

func measure(rows []*row, rounds int) error {
	for i := range rounds + 1 {
		for _, r := range rows {
			got, err := r.run()
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			if i > 0 {
				r.got = append(r.got, got)
			}
		}
	}
	return nil
}

// run runs the client once. The SOCKS relay lives on, the other is the run's own.
func (r *row) run() (got result, err error) {
	var before float64
	if r.relay != nil {
		if pid, err := r.relay(0); err == nil {
			before = cpuTime(pid)
		}
	}
	cmd := exec.Command(r.argv[0], r.argv[1:]...)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return got, err
	}
	err = json.NewDecoder(out).Decode(&got)
	if err == nil && r.relay != nil {
		var pid int
		if pid, err = r.relay(cmd.Process.Pid); err == nil {
			got.CPU = cpuTime(pid) - before
		}
	}
	return got, errors.Join(err, in.Close(), cmd.Wait())
}

// table prints the medians, and each as a ratio to the SOCKS relay's.
func table(w io.Writer, rows []*row, rounds int) error {
	fmt.Fprintf(w, "%d rounds, interleaved; medians, and in brackets the ratio to %s\n", rounds, rows[1].name)
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "\tdown MB/s\tup MB/s\trequests/s\tconnect us\tconnect+request us\trelay's CPU ms\t")
	for _, r := range rows {
		fmt.Fprintf(out, "%s\t", r.name)
		for _, of := range []func(result) float64{
			func(r result) float64 { return r.Down }, func(r result) float64 { return r.Up },
			func(r result) float64 { return r.Requests }, func(r result) float64 { return r.Connect }, func(r result) float64 { return r.Fresh },
			func(r result) float64 { return r.CPU },
		} {
			m := median(r.got, of)
			fmt.Fprintf(out, "%.0f (%.2f)\t", m, m/median(rows[1].got, of))
		}
		fmt.Fprintln(out)
	}
	return out.Flush()
}

func median(list []result, of func(result) float64) float64 {
	var v []float64
	for _, r := range list {
		v = append(v, of(r))
	}
	slices.Sort(v)
	return v[len(v)/2]
}
