//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"

	"github.com/agentguard/agentguard/internal/action"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/supervisor"
)

// dispatching is what exec --dispatch has found before the run.
type dispatching struct {
	who   supervisor.Caller
	state *runs.State
	found *supervisor.FoundAction
}

// dispatch is the action that is asked for, or "".
func (f *execFlags) dispatch() (name string, err error) {
	for _, p := range f.flags {
		if p.Name != "dispatch" {
			continue
		}
		if name != "" {
			return "", errors.New("--dispatch names one action: what the command prints is one input")
		}
		name = p.Value
	}
	return name, nil
}

// findAction finds the action before anything runs, and says where the
// command's stdout goes: with an action nowhere but to the record, which is then
// the input.
func (f *execFlags) findAction(pol *policy.Policy) (stdout *os.File, err error) {
	name, err := f.dispatch()
	if err != nil {
		return nil, err
	}
	if name == "" {
		if f.lines != "" || len(f.actions) > 0 && len(pol.Broker) == 0 {
			return nil, errors.New("--actions and --lines are for --dispatch ACTION, and --actions for --broker NAME")
		}
		return os.Stdout, nil
	}
	d := &dispatching{}
	if d.who, err = caller(); err != nil {
		return nil, err
	}
	if d.state, err = openState(f.state); err != nil {
		return nil, err
	}
	if d.found, err = supervisor.FindAction(d.who, d.state, name, f.actions); err != nil {
		return nil, errors.Join(err, d.state.Close())
	}
	if f.tty == supervisor.TTYAuto {
		f.tty = supervisor.TTYNever
	}
	f.ready = d
	return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
}

// releaseStdout closes what findAction opened.
func (d *dispatching) releaseStdout(stdout *os.File) {
	if d != nil {
		_ = stdout.Close() // /dev/null
	}
}

// sendStdout dispatches what the command printed, if it ended with 0.
func (f *execFlags) sendStdout(res *runs.Result) error {
	if f.ready == nil {
		return nil
	}
	defer f.ready.state.Close()
	if res.Status != 0 {
		tell("nothing is dispatched: the command ended with status %d", res.Status)
		return nil
	}
	err := f.sendRecorded(res)
	var st status
	if err != nil && !errors.As(err, &st) && res.Error == "" {
		res.Error = err.Error() // machines read it too
	}
	return err
}

func (f *execFlags) sendRecorded(res *runs.Result) error {
	if res.Stdout.Truncated {
		return &supervisor.Refusal{
			Status: action.StatusRefused, What: "nothing is dispatched: the record has only the beginning of the command's stdout (output.max_stdout_bytes)", Remedy: "print less",
		}
	}
	dir, err := f.ready.state.Open(res.ID)
	if err != nil {
		return err
	}
	defer dir.Close()
	in, err := dir.Open(runs.StdoutFile)
	if err != nil {
		return err
	}
	defer in.Close()
	return runDispatch(&supervisor.Dispatch{
		Caller: f.ready.who, State: f.ready.state, Found: f.ready.found, Input: in, Lines: f.lines, Run: res.ID,
		Told: func(o *action.Outcome) error {
			b, err := json.Marshal(o)
			if err != nil {
				return err
			}
			res.Dispatch = append(res.Dispatch, b)
			return printOutcome(o)
		},
	})
}

// maxData is how much of a stream exec --json repeats, in bytes.
const maxData = 64 << 10

// writeResult writes the result for machines, with the beginning of what the
// command wrote, as data.
func (f *execFlags) writeResult(out *os.File, res *runs.Result) error {
	if out == nil {
		return nil
	}
	s, err := openState(f.state)
	if err != nil {
		return err
	}
	defer s.Close()
	dir, err := s.Open(res.ID)
	if err != nil {
		return err
	}
	defer dir.Close()
	shown := *res
	for name, o := range map[string]*runs.Output{runs.StdoutFile: &shown.Stdout, runs.StderrFile: &shown.Stderr} {
		if o.Bytes == 0 {
			continue
		}
		in, err := dir.Open(name)
		if err != nil {
			return err
		}
		b, err := io.ReadAll(io.LimitReader(in, maxData))
		if err = errors.Join(err, in.Close()); err != nil {
			return err
		}
		o.Data = runs.NewData(b, uint64(len(b)) < o.Bytes)
	}
	return writeJSON(out, &shown)
}
