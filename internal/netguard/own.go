package netguard

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// ownAddresses are those of the host's interfaces. What listens on the host is reached
// at a public one as at loopback, past every firewall that stands before the host.
type ownAddresses struct {
	list func() ([]net.Addr, error)

	mu    sync.Mutex
	have  map[netip.Addr]bool
	until time.Time
}

func newOwnAddresses() *ownAddresses { return &ownAddresses{list: net.InterfaceAddrs} }

// has reports whether a is the host's. Where the addresses cannot be listed, those that were last are.
func (o *ownAddresses) has(a netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); now.After(o.until) {
		o.until = now.Add(resolveKeep)
		if list, err := o.list(); err == nil {
			o.have = map[netip.Addr]bool{}
			for _, one := range list {
				if n, ok := one.(*net.IPNet); ok {
					if ip, ok := netip.AddrFromSlice(n.IP); ok {
						o.have[ip.Unmap()] = true
					}
				}
			}
		}
	}
	return o.have[a.Unmap().WithZone("")]
}
