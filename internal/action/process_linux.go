package action

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/agentguard/agentguard/internal/reexec"
)

// HTTPProgram is the name of the program that speaks HTTP. It lies beside
// agentguard.
const HTTPProgram = "agentguard-http"

// Process is agentguard-http at work on one job.
type Process struct {
	Who    reexec.Identity
	Input  *os.File                    // what it reads inputs from
	Decide func(list []*Outcome) Reply // asked before anything is sent; the secret is erased after it was handed over
	Told   func(o *Outcome) error      // told what came of each input
	Filter []byte                      // of its system calls
}

// Run works through the job. The error is what is wrong with the file of
// actions, or with the process.
func (p *Process) Run(ctx context.Context, job *Job) error {
	exe, err := OpenHTTPProgram()
	if err != nil {
		return err
	}
	defer exe.Close()
	job.Filter = p.Filter
	return reexec.Executable(exe, func(path string) error { return p.start(ctx, path, job) })
}

// OpenHTTPProgram opens the program in the directory of the one that runs.
func OpenHTTPProgram() (*os.File, error) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(filepath.Dir(self), HTTPProgram))
	if err != nil {
		return nil, fmt.Errorf("%s is not beside agentguard: %w", HTTPProgram, err)
	}
	return f, nil
}

func (p *Process) start(ctx context.Context, path string, job *Job) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	said := &bounded{left: 4096}
	cmd := exec.CommandContext(ctx, path)
	cmd.Args, cmd.Env, cmd.Dir = []string{HTTPProgram, DispatchMode}, []string{}, "/"
	cmd.Stderr, cmd.ExtraFiles, cmd.WaitDelay = said, []*os.File{p.Input}, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: reexec.Credential(p.Who)}
	to, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	from, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", HTTPProgram, err)
	}
	err = p.talk(to, from, job)
	cancelled := ctx.Err() != nil
	if err != nil {
		cancel()
	}
	_ = to.Close()
	if werr := cmd.Wait(); werr != nil && (err == nil || !errors.As(err, new(*problem))) && !cancelled {
		err = fmt.Errorf("%s: %w: %s", HTTPProgram, werr, bytes.TrimSpace(said.b))
	}
	return err
}

// problem is what the process found wrong with the file of actions.
type problem struct{ text string }

func (p *problem) Error() string { return p.text }

// talk is the protocol of job.go.
func (p *Process) talk(to io.Writer, from io.Reader, job *Job) error {
	enc, dec := json.NewEncoder(to), json.NewDecoder(from)
	if err := enc.Encode(job); err != nil {
		return err
	}
	for {
		var m Message
		if err := dec.Decode(&m); err != nil {
			return fmt.Errorf("%s broke off: %w", HTTPProgram, err)
		}
		switch {
		case m.Ask != nil:
			if err := p.answer(to, m.Ask); err != nil {
				return err
			}
		case m.Outcome != nil:
			if err := p.Told(m.Outcome); err != nil {
				return err
			}
		case m.Problem != "":
			return &problem{m.Problem}
		case m.Done:
			return nil
		}
	}
}

// answer hands over what was decided, and erases the secret and its encoding; what
// encoding/json keeps for its next use is out of reach.
func (p *Process) answer(to io.Writer, list []*Outcome) error {
	r := p.Decide(list)
	b, err := json.Marshal(&r)
	clear(r.Secret)
	if err == nil {
		_, err = to.Write(b) // no line break is appended: that may copy it
	}
	clear(b)
	return err
}
