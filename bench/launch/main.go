// Command launch measures how long it takes to run /bin/true: natively, under
// bubblewrap with all its namespaces, and under agentguard, in interleaved
// rounds so that a noisy machine disturbs all of them alike.
//
//	launch [-agentguard FILE] [-bwrap FILE] [-rounds N] [-breakdown=false] [-user UID [-together N]] [-rest D]
//
// With -user, there is a row of that user's through the privileged helper, and last
// N runs are started at once.
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
	"time"
)

func main() {
	agentguard := flag.String("agentguard", "bin/agentguard", "the agentguard binary")
	bwrap := flag.String("bwrap", "bwrap", "the bubblewrap binary; left out when it is not there")
	rounds := flag.Int("rounds", 60, "measured rounds; one tenth more run first to warm up")
	breakdown := flag.Bool("breakdown", true, "then show where agentguard's own time goes")
	user := flag.Int("user", 0, "also as this user, through the helper; 0: not")
	crowd := flag.Int("together", 64, "with -user: then so many runs at once; 0: not")
	rest := flag.Duration("rest", 40*time.Millisecond, "before each run; 0: one follows the other")
	flag.Parse()
	if err := start(options{*agentguard, *bwrap, *rounds, *breakdown, *user, *crowd, *rest}); err != nil {
		fmt.Fprintln(os.Stderr, "launch:", err)
		os.Exit(1)
	}
}

type options struct {
	agentguard, bwrap string
	rounds            int
	breakdown         bool
	user, together    int
	rest              time.Duration
}

func start(o options) error {
	self, err := filepath.Abs(o.agentguard)
	if err != nil {
		return err
	}
	o.agentguard = self
	switch {
	case o.rounds < 1:
		return errors.New("-rounds: at least 1")
	case o.user != 0 && os.Getenv(stagedVar) == "":
		return onStage(self)
	}
	return run(o)
}

func run(o options) error {
	state, err := os.MkdirTemp("", "agentguard-bench-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)
	// An empty directory as workspace: what is measured is the launch, not the tree it is started in.
	workspace := []string{"-w", state + "/workspace"}
	sandbox := append([]string{o.agentguard, "exec", "-q", "--state", state + "/state"}, workspace...)
	if err := errors.Join(os.Chmod(state, 0o755), os.Mkdir(state+"/workspace", 0o755), os.Chown(state+"/workspace", o.user, o.user)); err != nil {
		return err
	}
	rows := []*row{
		{name: "native", argv: []string{"/bin/true"}},
		{name: "agentguard exec", argv: append(sandbox[:len(sandbox):len(sandbox)], "--", "/bin/true")},
	}
	if o.user != 0 {
		h, err := startHelper(o.agentguard, state)
		if err != nil {
			return err
		}
		defer func() { _ = h.stop() }()
		rows[1].argv = append(append([]string{o.agentguard, "exec", "-q", "--state", records + "/bench"}, workspace...), "--", "/bin/true")
		rows = append(rows, h.row(o.user, append(append([]string{o.agentguard, "exec", "-q"}, workspace...), "--", "/bin/true")))
	}
	if path, err := exec.LookPath(o.bwrap); err == nil {
		rows = append(rows, &row{name: "bwrap --unshare-all", argv: []string{
			path, "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "/bin/true",
		}})
	} else {
		fmt.Fprintln(os.Stderr, "launch: no bwrap here: its row is left out")
	}
	if err := measure(rows, o.rounds, o.rest); err != nil {
		return err
	}
	fmt.Printf("%d rounds, interleaved, %v before each; milliseconds\n", o.rounds, o.rest)
	if err := table(os.Stdout, rows); err != nil {
		return err
	}
	if o.user != 0 && o.together > 0 {
		if err := together(os.Stdout, rows[1:3], o.together, 5); err != nil {
			return err
		}
	}
	if !o.breakdown {
		return nil
	}
	return stages(os.Stdout, sandbox, o.rounds)
}
