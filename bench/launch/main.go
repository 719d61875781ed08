// Command launch measures how long it takes to run /bin/true: natively, under
// bubblewrap with all its namespaces, and under agentguard, in interleaved
// rounds so that a noisy machine disturbs all of them alike.
//
//	launch [-agentguard FILE] [-bwrap FILE] [-rounds N] [-breakdown=false]
//
// Then it shows where agentguard's own time goes, step by step.
//
// Read ratios, not milliseconds: the children are started by vfork and execve
// from a small process, but the machine's clock speed and load are in every
// number.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

func main() {
	agentguard := flag.String("agentguard", "bin/agentguard", "the agentguard binary")
	bwrap := flag.String("bwrap", "bwrap", "the bubblewrap binary; left out when it is not there")
	rounds := flag.Int("rounds", 60, "measured rounds; one tenth more run first to warm up")
	breakdown := flag.Bool("breakdown", true, "then show where agentguard's own time goes")
	flag.Parse()
	if err := run(*agentguard, *bwrap, *rounds, *breakdown); err != nil {
		fmt.Fprintln(os.Stderr, "launch:", err)
		os.Exit(1)
	}
}

func run(agentguard, bwrap string, rounds int, breakdown bool) error {
	if rounds < 1 {
		return errors.New("-rounds: at least 1")
	}
	state, err := os.MkdirTemp("", "agentguard-bench-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)
	self, err := filepath.Abs(agentguard)
	if err != nil {
		return err
	}
	// An empty directory as workspace: what is measured is the launch, not the tree it is started in.
	sandbox := []string{self, "exec", "-q", "--state", state + "/state", "-w", state + "/workspace"}
	if err := os.Mkdir(state+"/workspace", 0o755); err != nil {
		return err
	}
	rows := []*row{
		{name: "native", argv: []string{"/bin/true"}},
		{name: "agentguard exec", argv: append(sandbox[:len(sandbox):len(sandbox)], "--", "/bin/true")},
	}
	if path, err := exec.LookPath(bwrap); err == nil {
		rows = append(rows, &row{name: "bwrap --unshare-all", argv: []string{
			path, "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "/bin/true",
		}})
	} else {
		fmt.Fprintln(os.Stderr, "launch: no bwrap here: its row is left out")
	}
	if err := measure(rows, rounds); err != nil {
		return err
	}
	fmt.Printf("%d rounds, interleaved; milliseconds\n", rounds)
	if err := table(os.Stdout, rows); err != nil || !breakdown {
		return err
	}
	return stages(os.Stdout, sandbox, rounds)
}
