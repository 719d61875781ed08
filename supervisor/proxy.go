package supervisor

import (
	"cmp"
	"errors"

	"github.com/agentguard/agentguard/internal/netguard"
	"github.com/agentguard/agentguard/policy"
)

// EgressProxy is the proxy that a run's connections go through, without its
// credentials: those are in no plan and no record.
type EgressProxy struct {
	Address  string `json:"address"`            // HOST:PORT
	Variable string `json:"variable"`           // of the caller's environment, that names it
	NoProxy  string `json:"no_proxy,omitempty"` // the variable's value

	proxy netguard.Proxy
}

// newEgressProxy reads the proxy of the caller's environment: the one for
// https, else the one for everything. Small letters come first, as for curl.
func newEgressProxy(p *policy.Policy, environ []string) (*EgressProxy, error) {
	if p.Proxy.Value == "none" {
		return nil, nil
	}
	for _, name := range []string{"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"} {
		url := lookupEnv(environ, name)
		if url == "" {
			continue
		}
		e := &EgressProxy{Variable: name, NoProxy: cmp.Or(lookupEnv(environ, "no_proxy"), lookupEnv(environ, "NO_PROXY"))}
		e.proxy = netguard.Proxy{URL: url, NoProxy: e.NoProxy}
		var err error
		if e.Address, err = e.proxy.Address(); err != nil {
			return nil, proxyRefusal(name, err)
		}
		return e, nil
	}
	return nil, nil
}

// proxyRefusal shows nothing of the variable's value.
func proxyRefusal(name string, err error) error {
	remedy := "correct it, or connect without a proxy with --proxy none"
	if errors.Is(err, netguard.ErrScheme) {
		remedy = "name an http:// proxy in https_proxy, or connect without one with --proxy none"
	}
	return &Refusal{What: "the proxy in " + name + " cannot be used", Err: err, Clause: "network.proxy", Remedy: remedy}
}
