//go:build linux

package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/terminal"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
)

func newAttach() *cobra.Command {
	c := &cobra.Command{
		Use: "attach [ID|last]", Short: "Follow the output of a run until it ends", Args: cobra.MaximumNArgs(1),
		Long: `attach prints what a run has written so far to stdout and stderr, as far as the record keeps
it (output.max_stdout_bytes), and goes on until the run has ended. Ctrl-C ends attach, not the run.
On a terminal only text and colours are shown. A run has no keyboard here: it was started with
exec --detach, or belongs to another terminal.

Exit status: the run's own; 125 it has none, or cannot be read.`,
		Example: "  id=$(agentguard exec --detach -- make test)\n  agentguard attach $id",
	}
	state := stateFlag(c)
	c.RunE = func(_ *cobra.Command, args []string) error {
		d, err := openRun(*state, append(args, "last")[0])
		if err != nil {
			return err
		}
		defer d.Close()
		return attach(d)
	}
	return c
}

// attachEvery is how often a run's output is looked at.
const attachEvery = 100 * time.Millisecond

func attach(d *runs.RunDir) error {
	followers := []*follower{newFollower(runs.StdoutFile, os.Stdout), newFollower(runs.StderrFile, os.Stderr)}
	for {
		live := d.Live() // before the copies: what they lack afterwards is not to come
		for _, f := range followers {
			if err := f.copy(d); err != nil {
				return err
			}
		}
		if !live {
			break
		}
		time.Sleep(attachEvery)
	}
	for _, f := range followers {
		if err := f.close(); err != nil {
			return err
		}
	}
	res, err := d.Result()
	if errors.Is(err, fs.ErrNotExist) {
		return &supervisor.Refusal{What: "run " + trace.Quote(d.ID()) + " has ended without a result", Remedy: "agentguard runs recover"}
	}
	if err == nil && res.Status != 0 {
		err = status(res.Status)
	}
	return err
}

// follower copies a growing file.
type follower struct {
	name  string
	from  *os.File
	to    *os.File
	clean *terminal.Filter // nil: to is no terminal
}

func newFollower(name string, to *os.File) *follower {
	f := &follower{name: name, to: to}
	if isTerminal(to) {
		f.clean = terminal.NewFilter(terminal.Colours)
	}
	return f
}

// copy writes what has come since.
func (f *follower) copy(d *runs.RunDir) error {
	if f.from == nil {
		file, err := d.Open(f.name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the run has not begun
		}
		if err != nil {
			return err
		}
		f.from = file
	}
	if f.clean == nil {
		_, err := io.Copy(f.to, f.from)
		return err
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := f.from.Read(buf)
		if n > 0 {
			if _, err := f.to.Write(f.clean.Append(nil, buf[:n])); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (f *follower) close() error {
	if f.from == nil {
		return nil
	}
	return f.from.Close()
}
