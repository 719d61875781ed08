package action

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/agentguard/agentguard/internal/special"
)

// errNowhere means that a name leads to special ranges only.
var errNowhere = errors.New("it leads to private or special addresses only; destination.allow_private would permit them")

// Permits reports whether a connection to an address may be made for a host,
// which is a name or an address. What a name leads to is asked when it is
// dialled: a name that changes its address gains nothing. An address that the
// file has itself was meant.
func (d *Destination) Permits(host string, a netip.Addr) bool {
	a = a.Unmap()
	if literal, err := netip.ParseAddr(unbracketed(host)); err == nil {
		return literal == a && (!d.Plain || a.IsLoopback())
	}
	if d.Plain {
		return false // plain http has the loopback address itself
	}
	return !special.Contains(a) || slices.ContainsFunc(d.AllowPrivate, func(p netip.Prefix) bool {
		return p.Contains(a) && special.Names(p, a)
	})
}

// Dial connects to a host that the file names, and to no address that it may
// not have. lookup is asked about names.
func (d *Destination) Dial(ctx context.Context, host string, port uint16, lookup func(context.Context, string) ([]netip.Addr, error)) (net.Conn, error) {
	addrs, err := d.addresses(ctx, host, lookup)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", host, err)
	}
	var last error
	for _, a := range addrs {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", netip.AddrPortFrom(a, port).String())
		if err == nil {
			return c, nil
		}
		if last = err; ctx.Err() != nil {
			break
		}
	}
	return nil, last
}

// maxAddresses of a name are tried.
const maxAddresses = 8

func (d *Destination) addresses(ctx context.Context, host string, lookup func(context.Context, string) ([]netip.Addr, error)) ([]netip.Addr, error) {
	var all []netip.Addr
	literal, err := netip.ParseAddr(unbracketed(host))
	switch {
	case err == nil:
		all = []netip.Addr{literal}
	case d.Resolve.IsValid():
		all = []netip.Addr{d.Resolve}
	default:
		if all, err = lookup(ctx, host); err != nil {
			return nil, err
		}
	}
	var out []netip.Addr
	for _, a := range all {
		if a = a.Unmap(); (d.Resolve.IsValid() || d.Permits(host, a)) && len(out) < maxAddresses && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	if len(out) == 0 {
		return nil, errNowhere
	}
	return out, nil
}

func unbracketed(host string) string {
	if len(host) > 1 && host[0] == '[' {
		return host[1 : len(host)-1]
	}
	return host
}
