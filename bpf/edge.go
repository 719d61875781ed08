package bpf

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// EdgeSockets are the relay's sockets in the namespace, by protocol and family
// (TCP4, TCP6 listening, UDP4, UDP6 bound); nil where there is none.
type EdgeSockets struct{ TCP4, TCP6, UDP4, UDP6 *os.File }

// Edge is the look-up program of one network namespace: it decides which socket
// a new connection or a datagram meets there. It must be kept: a link or a map
// that is collected takes the program off in silence.
type Edge struct {
	link        link.Link
	edge, relay *ebpf.Map
	prog        *ebpf.Program
}

// NewEdge loads the program with its rules; it is attached to nothing yet.
func NewEdge(rules []Rule) (*Edge, error) {
	e := &Edge{}
	if err := e.load(rules); err != nil {
		return nil, errors.Join(fmt.Errorf("bpf: look-up program: %w", plain(err)), e.Close())
	}
	return e, nil
}

func (e *Edge) load(rules []Rule) error {
	spec, err := loadLookup()
	if err != nil {
		return err
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return err
	}
	defer c.Close()
	e.prog, e.edge, e.relay = c.DetachProgram("lookup"), c.DetachMap("edge"), c.DetachMap("relay")
	return fillRules(e.edge, 0, rules)
}

// Attach puts the program in force in netns: what the rules have goes to the
// relay's sockets, loopback as always, and everything else is refused. It ends
// with Close, with this process, or with the namespace.
func (e *Edge) Attach(netns *os.File, sockets EdgeSockets) error {
	for i, f := range []*os.File{sockets.TCP4, sockets.TCP6, sockets.UDP4, sockets.UDP6} { // relay_index of c/lookup.c
		if f == nil {
			continue
		}
		if err := e.put(uint32(i), f); err != nil {
			return fmt.Errorf("bpf: look-up program: %s: %w", f.Name(), err)
		}
	}
	var err error
	if e.link, err = link.AttachNetNs(int(netns.Fd()), e.prog); err != nil {
		return fmt.Errorf("bpf: look-up program: %w", err)
	}
	runtime.KeepAlive(netns)
	return nil
}

// put leaves the socket as it is: Fd would make it block, for all who share it.
func (e *Edge) put(index uint32, f *os.File) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var perr error
	err = rc.Control(func(fd uintptr) { perr = e.relay.Put(index, uint64(fd)) })
	return errors.Join(err, perr)
}

// Close takes the program off.
func (e *Edge) Close() error {
	var errs []error
	if e.link != nil {
		errs = append(errs, e.link.Close())
	}
	if e.prog != nil {
		errs = append(errs, e.prog.Close())
	}
	for _, m := range []*ebpf.Map{e.edge, e.relay} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	*e = Edge{}
	return errors.Join(errs...)
}
