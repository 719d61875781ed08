package broker

import (
	"encoding/json"
	"os"
	"time"

	"github.com/agentguard/agentguard/internal/reexec"
)

// Mode is the argument of agentguard-http for this process.
const Mode = "broker"

// Process is the running process, as its supervisor sees it.
type Process struct{ *reexec.Process }

// Start starts agentguard-http, which is open at exe. dial leads to the process that
// dials. Both stay the caller's, and so do the configuration's secrets, to erase.
func Start(cfg *Config, exe *os.File, who reexec.Identity, dial *os.File) (*Process, error) {
	b, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	defer clear(b)
	p, err := reexec.Start(&reexec.Spec{
		Exe: exe, Name: "agentguard-broker", What: "the process of the brokers", Mode: Mode, Config: b, Who: who, Files: []*os.File{dial},
	})
	if err != nil {
		return nil, err
	}
	return &Process{p}, nil
}

// Read calls fn for each event until the process has ended.
func (p *Process) Read(fn func(*Event)) error {
	return p.Process.Read(MaxEvent, func(b []byte) error {
		e, err := ParseEvent(b)
		if err == nil {
			fn(&e)
		}
		return err
	})
}

// Ready waits until the process serves.
func (p *Process) Ready(limit time.Duration) error {
	return p.Process.Ready(limit, MaxEvent, func(b []byte) bool {
		e, err := ParseEvent(b)
		return err == nil && e.Kind == KindReady
	})
}
