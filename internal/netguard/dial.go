package netguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/special"
)

const (
	dialLimit   = 60 * time.Second
	stagger     = 250 * time.Millisecond // between attempts (RFC 8305, section 5)
	maxTargets  = 16                     // addresses of a name that are tried
	maxDials    = 256                    // at once
	maxDialsTo  = 64                     // of them to one destination: one that does not answer holds up itself
	resolveKeep = 2 * time.Second        // how long an answer serves the next connection
)

// errPrivate means that a name leads to special ranges, or to this host, only.
var errPrivate = errors.New("it resolves to private or special addresses only, or to this host; allow_private would permit them")

// errName means that a name is none of a host: what resolves it, and a proxy, would read something else in it.
var errName = errors.New("it is no name of a host")

// errWide means that an allowed range holds a special address only by the way.
var errWide = errors.New("it is a special address inside a wider range that is allowed; allow the address, or a range within its own")

// dialer reaches destinations from the host's side. A name is resolved when it
// is dialled and every address is checked then, so that a name that changes its
// address gains nothing.
type dialer struct {
	resolve map[string]netip.Addr // pinned by the policy
	names   []string              // of allow_private
	private []netip.Prefix
	nets    func(netip.Addr) *Net
	own     func(netip.Addr) bool // of the host itself
	lookup  func(ctx context.Context, name string) ([]netip.Addr, error)
	dial    func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error)
	slots   chan struct{}

	proxy    *Proxy       // nil: none
	untold   atomic.Int64 // until then, in Unix nanoseconds, the host's resolver is not asked about names of the proxy's
	dialHost func(ctx context.Context, hostPort string) (net.Conn, error)

	mu    sync.Mutex
	fresh map[string]*resolution
	gates map[destination]*gate
}

// gate lets a number of dials to one destination through at a time.
type gate struct {
	slots chan struct{}
	users int // that wait or dial; guarded by the dialer's mu
}

// turn waits until a destination may be dialled; the function that it returns ends the dial.
func (d *dialer) turn(dest destination) (done func()) {
	d.mu.Lock()
	g := d.gates[dest]
	if g == nil {
		g = &gate{slots: make(chan struct{}, maxDialsTo)}
		d.gates[dest] = g
	}
	g.users++
	d.mu.Unlock()
	g.slots <- struct{}{}
	d.slots <- struct{}{}
	return func() {
		<-d.slots
		<-g.slots
		d.mu.Lock()
		defer d.mu.Unlock()
		if g.users--; g.users == 0 {
			delete(d.gates, dest)
		}
	}
}

// resolution is an answer, or one that is waited for.
type resolution struct {
	done  chan struct{}
	addrs []netip.Addr
	err   error
	until time.Time
}

func newDialer(c *Config, dir *directory) *dialer {
	// PreferGo: the resolver reads the host's nsswitch.conf, hosts and
	// resolv.conf, and no code but Go's parses the answers.
	resolver := &net.Resolver{PreferGo: true}
	plain := &net.Dialer{}
	return &dialer{
		resolve: c.Resolve, names: c.PrivateNames, private: c.PrivateNets, nets: dir.net, own: newOwnAddresses().has,
		lookup: func(ctx context.Context, name string) ([]netip.Addr, error) {
			return resolver.LookupNetIP(ctx, "ip", name+".") // the root dot: no search suffix
		},
		dial: func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
			return plain.DialContext(ctx, network, to.String())
		},
		proxy: c.Proxy,
		dialHost: func(ctx context.Context, hostPort string) (net.Conn, error) {
			return (&net.Dialer{Resolver: resolver}).DialContext(ctx, "tcp", hostPort)
		},
		slots: make(chan struct{}, maxDials),
		fresh: map[string]*resolution{},
		gates: map[destination]*gate{},
	}
}

// reached says where a connection leads, or where the last attempt to make it did.
type reached struct {
	addr netip.AddrPort // not known where a proxy resolves the name
	via  bool           // through the proxy
}

// connect dials a destination.
func (d *dialer) connect(ctx context.Context, proto string, dest destination) (net.Conn, reached, error) {
	defer d.turn(dest)()
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	var to reached
	if dest.name != "" && !hostName(dest.name) {
		return nil, to, errName
	}
	if dest.name == "" { // the policy has the address itself
		to.addr = netip.AddrPortFrom(dest.addr, dest.port)
		if n := d.nets(dest.addr); special.Contains(dest.addr) && (n == nil || !special.Names(n.Prefix, dest.addr)) {
			return nil, to, errWide
		}
	}
	c, used, err := d.through(ctx, proto, dest)
	switch {
	case used || err != nil:
		to.via = true
		return c, to, err
	case dest.name == "":
		c, err = d.dial(ctx, proto, to.addr)
		return c, to, err
	}
	addrs, err := d.addresses(ctx, proto, dest)
	if err != nil {
		return nil, to, err
	}
	c, to.addr, err = d.race(ctx, proto, interleave(addrs), dest.port)
	return c, to, err
}

// addresses resolves a name and drops what it may not lead to.
func (d *dialer) addresses(ctx context.Context, proto string, dest destination) ([]netip.Addr, error) {
	all, err := d.look(ctx, dest.name)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range all {
		if a = a.Unmap(); d.permitted(proto, dest, a) && len(out) < maxTargets && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	if len(out) == 0 {
		return nil, errPrivate
	}
	return out, nil
}

// permitted reports whether a name may lead to an address: to a special one, or one of
// the host's own, only where allow_private has the name or the address, or the allowlist has
// the address itself with this port.
func (d *dialer) permitted(proto string, dest destination, a netip.Addr) bool {
	if !special.Contains(a) && !d.own(a) || d.mayBePrivate(dest.name) {
		return true
	}
	if n := d.nets(a); n != nil && n.allows(proto, dest.port) && special.Names(n.Prefix, a) {
		return true
	}
	return slices.ContainsFunc(d.private, func(p netip.Prefix) bool { return p.Contains(a) })
}

// mayBePrivate reports whether allow_private has the name, or a wildcard above it.
func (d *dialer) mayBePrivate(name string) bool {
	if slices.Contains(d.names, name) {
		return true
	}
	for above := range wildcardsOf(name) {
		if slices.Contains(d.names, above) {
			return true
		}
	}
	return false
}

// look resolves a name once for all connections that ask at the same time.
func (d *dialer) look(ctx context.Context, name string) ([]netip.Addr, error) {
	if a, pinned := d.resolve[name]; pinned {
		return []netip.Addr{a}, nil
	}
	d.mu.Lock()
	r := d.fresh[name]
	if r != nil && (r.until.IsZero() || time.Now().Before(r.until)) {
		d.mu.Unlock()
		select {
		case <-r.done:
			return r.addrs, r.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if len(d.fresh) >= maxSeen {
		clear(d.fresh)
	}
	r = &resolution{done: make(chan struct{})}
	d.fresh[name] = r
	d.mu.Unlock()
	r.addrs, r.err = d.lookup(ctx, name)
	d.mu.Lock()
	r.until = time.Now().Add(resolveKeep)
	d.mu.Unlock()
	close(r.done)
	return r.addrs, r.err
}

// interleave alternates the families, beginning with the first one's (RFC 8305, section 4).
func interleave(addrs []netip.Addr) []netip.Addr {
	var same, other []netip.Addr
	for _, a := range addrs {
		if a.Is4() == addrs[0].Is4() {
			same = append(same, a)
		} else {
			other = append(other, a)
		}
	}
	var out []netip.Addr
	for len(same)+len(other) > 0 {
		for _, list := range []*[]netip.Addr{&same, &other} {
			if len(*list) > 0 {
				out, *list = append(out, (*list)[0]), (*list)[1:]
			}
		}
	}
	return out
}

type attempt struct {
	conn net.Conn
	to   netip.AddrPort
	err  error
}

// race tries the addresses one after the other, each a moment after the one
// before or when that one has failed, and takes the first connection.
func (d *dialer) race(ctx context.Context, proto string, addrs []netip.Addr, port uint16) (net.Conn, netip.AddrPort, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan attempt, len(addrs))
	started, failed := 0, 0
	begin := func() {
		to := netip.AddrPortFrom(addrs[started], port)
		started++
		go func() {
			c, err := d.dial(ctx, proto, to)
			results <- attempt{c, to, err}
		}()
	}
	begin()
	wait := time.NewTimer(stagger)
	defer wait.Stop()
	for {
		select {
		case <-wait.C:
		case r := <-results:
			if r.err == nil {
				go discard(results, started-failed-1)
				return r.conn, r.to, nil
			}
			if failed++; failed == len(addrs) {
				return nil, r.to, r.err
			}
		}
		if started < len(addrs) {
			begin()
			wait.Reset(stagger)
		}
	}
}

// discard closes the connections that came too late.
func discard(results <-chan attempt, n int) {
	for range n {
		if r := <-results; r.conn != nil {
			r.conn.Close()
		}
	}
}

// reason says what a failed dial is in the record: its errno, and in words.
func reason(err error) (errno int, text string) {
	var sys unix.Errno
	var dns *net.DNSError
	switch {
	case errors.As(err, &sys):
		return int(sys), sys.Error()
	case errors.As(err, &dns) && dns.IsNotFound:
		return 0, "the host does not find the name"
	case errors.As(err, &dns):
		return 0, fmt.Sprintf("the host could not resolve the name: %s", dns.Err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return int(unix.ETIMEDOUT), unix.ETIMEDOUT.Error()
	}
	return 0, err.Error()
}
