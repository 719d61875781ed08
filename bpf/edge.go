package bpf

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// EdgeSockets are the relay's sockets in the namespace; nil where there is none.
type EdgeSockets struct{ TCP4, TCP6, UDP4, UDP6 *os.File }

// Edge is the look-up program of one network namespace: it decides which socket
// a new connection or a datagram meets there. Both must be kept: a link or a map
// that is collected takes the program off in silence.
type Edge struct {
	link link.Link
	maps []*ebpf.Map
	prog *ebpf.Program
}

// AttachEdge loads the program and attaches it to netns. What the rules have
// goes to the relay's sockets, loopback as always, and everything else is
// refused. It ends with Close, with this process, or with the namespace.
func AttachEdge(netns *os.File, rules []Rule, sockets EdgeSockets) (*Edge, error) {
	e := &Edge{}
	if err := e.attach(netns, rules, sockets); err != nil {
		return nil, errors.Join(fmt.Errorf("bpf: look-up program: %w", plain(err)), e.Close())
	}
	return e, nil
}

func (e *Edge) attach(netns *os.File, rules []Rule, sockets EdgeSockets) error {
	spec, err := loadLookup()
	if err != nil {
		return err
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return err
	}
	defer c.Close()
	e.prog = c.DetachProgram("lookup")
	edge, relay := c.DetachMap("edge"), c.DetachMap("relay")
	e.maps = []*ebpf.Map{edge, relay}
	if err := fillRules(edge, 0, rules); err != nil {
		return err
	}
	for i, f := range []*os.File{sockets.TCP4, sockets.TCP6, sockets.UDP4, sockets.UDP6} { // relay_index of c/lookup.c
		if f == nil {
			continue
		}
		err := relay.Put(uint32(i), uint64(f.Fd()))
		runtime.KeepAlive(f)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
	}
	e.link, err = link.AttachNetNs(int(netns.Fd()), e.prog)
	runtime.KeepAlive(netns)
	return err
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
	for _, m := range e.maps {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	e.link, e.prog, e.maps = nil, nil, nil
	return errors.Join(errs...)
}
