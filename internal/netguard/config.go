// Package netguard is the network of a run that has an allowlist: a resolver
// and a relay at the edge of a network namespace that has nothing but loopback.
//
//	command            namespace                        netguard process           world
//	look-up of NAME -> 127.0.0.1:53 -----------------> its synthetic address, or NXDOMAIN
//	connect ---------> sk_lookup: allowed? ----------> accept: which name? allowed?
//	                     no: refused                    resolve NAME now, check --> dial
//	                                                    move bytes both ways
//
// The process that does this parses what hostile programs write. It has the
// caller's uid, no capability and a filter of its own, and lives in the host's
// network namespace; the sockets of the run's namespace are made for it by the
// supervisor, which reads back one line for each thing that happened. It exits
// when the supervisor's end of their socket closes.
//
// Names that are not allowed do not exist inside. An allowed name has a
// synthetic address (Table), so the name of every connection is known without
// looking at what it carries, and an address that many names share opens
// nothing else.
package netguard

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
)

// Config is what the process is told at its start.
type Config struct {
	Table        Table                 `json:"table"`
	Resolve      map[string]netip.Addr `json:"resolve,omitempty"`       // names pinned to an address
	PrivateNames []string              `json:"private_names,omitempty"` // may lead to special addresses; "*." and a domain too
	PrivateNets  []netip.Prefix        `json:"private_nets,omitempty"`  // special addresses that any allowed name may lead to
	Proxy        *Proxy                `json:"proxy,omitempty"`         // that connections go through; nil: none
	Brokers      []Broker              `json:"brokers,omitempty"`       // endpoints whose connections another process serves
	IPv6         bool                  `json:"ipv6"`                    // the namespace has it
	PerAddress   bool                  `json:"per_address,omitempty"`   // a socket for each address and port: there is no look-up program
	AcceptFirst  bool                  `json:"accept_first,omitempty"`  // connections are answered before they are dialled

	MaxConnections int64 `json:"max_connections"` // at once
	MaxBytes       int64 `json:"max_bytes"`       // sent by the command in all; below 0: no limit

	Publish   []uint16 `json:"publish,omitempty"` // ports of the host's loopback that lead into the namespace
	CallerUID int      `json:"caller_uid"`        // who may use them, besides root

	Seccomp []byte `json:"seccomp"` // the process's own filter, as struct sock_filter
}

func (c *Config) encode() ([]byte, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("netguard: %w", err)
	}
	return b, nil
}

func decodeConfig(b []byte) (*Config, error) {
	c := &Config{}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if c.MaxConnections <= 0 {
		return nil, errors.New("configuration: no connection is allowed")
	}
	return c, nil
}
