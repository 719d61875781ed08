package netguard

import (
	"os"
	"strings"
	"time"

	"github.com/agentguard/agentguard/internal/reexec"
)

// Process is the running process, as its supervisor sees it.
type Process struct{ *reexec.Process }

// Start starts this program's own file again in the process's [Mode]. The
// program's main function must call [Main] for it.
func Start(cfg *Config, who reexec.Identity) (*Process, error) {
	b, err := cfg.encode()
	if err != nil {
		return nil, err
	}
	p, err := reexec.Start(&reexec.Spec{Name: "agentguard-net", What: "the network process", Mode: Mode, Config: b, Who: who})
	if err != nil {
		return nil, err
	}
	return &Process{p}, nil
}

// Send hands over the sockets of the namespace.
func (p *Process) Send(n *Namespace) error {
	var roles []string
	var files []*os.File
	for _, f := range n.Spares {
		roles, files = append(roles, string(Spare)), append(files, f)
	}
	for role, f := range n.Sockets {
		roles, files = append(roles, string(role)), append(files, f)
	}
	for _, s := range n.Each {
		roles, files = append(roles, string(s.Role)), append(files, s.File)
	}
	for len(files) > 0 {
		k := min(len(files), reexec.MaxRights)
		if err := p.Process.Send(strings.Join(roles[:k], " "), files[:k]); err != nil {
			return err
		}
		roles, files = roles[k:], files[k:]
	}
	return p.Process.Send(allSent, nil)
}

// allSent is the message after the last socket.
const allSent = "all"

// SendSpare hands over one more socket for a published port.
func (p *Process) SendSpare(f *os.File) error { return p.Process.Send(string(Spare), []*os.File{f}) }

// SendBrokers hands over the socket to the process of the brokers.
func (p *Process) SendBrokers(f *os.File) error {
	return p.Process.Send(string(Brokers), []*os.File{f})
}

// Read calls fn for each event until the process has ended.
func (p *Process) Read(fn func(*Event)) error {
	return p.Process.Read(maxEvent, func(b []byte) error {
		e, err := parseEvent(b)
		if err == nil {
			fn(&e)
		}
		return err
	})
}

// Ready waits until the process serves.
func (p *Process) Ready(limit time.Duration) error {
	return p.Process.Ready(limit, maxEvent, func(b []byte) bool {
		e, err := parseEvent(b)
		return err == nil && e.Kind == KindReady
	})
}
