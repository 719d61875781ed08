// Package broker is what agentguard and the process that serves brokers
// (internal/gateway in agentguard-http) say to each other: which APIs programs of
// a run may call with a credential that they never see, what of them, and what was
// called.
//
//	command                    dialling process          broker process              upstream
//	connect NAME... :80 ------> accept, hand over -----> HTTP/1.1, in the clear
//	                                                     method, path, headers: allowed?
//	                            dial, check, relay <---- I want HOST:PORT
//	                                 \-----------------> TLS, credential added -----> HTTPS
//	                                                     answer scrubbed
//
// What a request and an answer may carry is listed, never what they may not.
package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Domain is what the names of all brokers end with inside. ICANN keeps
// "internal" free for private use.
const Domain = ".broker.internal"

// Config is what the process is told at its start. It holds credentials: it is
// passed in memory, and never printed or recorded.
type Config struct {
	Endpoints []Endpoint `json:"endpoints"`
	Seccomp   []byte     `json:"seccomp"` // the process's own filter, as struct sock_filter
}

// Endpoint is one API that programs inside may call.
type Endpoint struct {
	Name   string  `json:"name"` // inside it is NAME.broker.internal
	Host   string  `json:"host"` // of the upstream; its certificate is for this name
	Port   uint16  `json:"port"`
	Routes []Route `json:"routes"`

	Header string   `json:"header"` // that carries the credential
	Value  []byte   `json:"value"`  // of that header
	Hide   [][]byte `json:"hide"`   // what no answer may hold: the credential, as it was read

	SetHeaders      [][2]string `json:"set_headers,omitempty"`      // of each request, whatever the command says
	RequestHeaders  []string    `json:"request_headers,omitempty"`  // let through besides the usual ones
	ResponseHeaders []string    `json:"response_headers,omitempty"` // likewise

	MaxCalls    int64         `json:"max_calls"`    // in the run
	MaxPerMin   int64         `json:"max_per_min"`  // calls in any minute; 0: no limit
	MaxRequest  int64         `json:"max_request"`  // bytes of one body
	MaxResponse int64         `json:"max_response"` // likewise
	Timeout     time.Duration `json:"timeout"`      // of one call, to its last byte

	RootsPEM []byte `json:"roots_pem,omitempty"` // the authorities that its certificate may be of; none: those of the host
}

// Route is what may be asked for.
type Route struct {
	Methods []string `json:"methods"`
	Path    string   `json:"path"`            // "/v1/models/{id}": a name in braces is one segment; "{rest...}" at the end one or more
	Query   []string `json:"query,omitempty"` // names of the parameters that may be there
}

// Bounds of an endpoint.
const (
	MinSecret    = 8        // bytes: a shorter credential would be found in any answer
	maxSecret    = 8 << 10  // bytes
	maxBody      = 16 << 20 // of MaxRequest: a body is held until it is whole
	maxEndpoints = 64
)

// ParseConfig reads what the process is given.
func ParseConfig(b []byte) (*Config, error) {
	c := &Config{}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, errors.New("the configuration is not JSON of ours") // err may show the credential
	}
	if len(c.Endpoints) == 0 || len(c.Endpoints) > maxEndpoints {
		return nil, fmt.Errorf("%d brokers are configured", len(c.Endpoints))
	}
	for i := range c.Endpoints {
		if err := c.Endpoints[i].Check(); err != nil {
			return nil, fmt.Errorf("broker %s: %w", c.Endpoints[i].Name, err)
		}
	}
	return c, nil
}

// Check says what is wrong with an endpoint.
func (e *Endpoint) Check() error {
	switch {
	case !Label(e.Name):
		return errors.New("its name is no label of a host name")
	case e.Host == "" || e.Port == 0:
		return errors.New("it has no upstream")
	case e.Header == "" || len(e.Value) == 0 || len(e.Hide) == 0:
		return errors.New("it has no credential")
	case slices.ContainsFunc(e.Value, func(b byte) bool { return b < ' ' || b >= 0x7f }):
		return errors.New("its credential cannot stand in a header")
	case slices.ContainsFunc(e.Hide, func(b []byte) bool { return len(b) < MinSecret || len(b) > maxSecret }):
		return fmt.Errorf("its credential has less than %d or more than %d bytes", MinSecret, maxSecret)
	case e.MaxCalls <= 0 || e.MaxRequest < 0 || e.MaxRequest > maxBody || e.MaxResponse <= 0 || e.Timeout <= 0:
		return errors.New("a limit is missing or out of range")
	case len(e.Routes) == 0:
		return errors.New("it allows nothing")
	}
	for i := range e.Routes {
		if err := e.Routes[i].Check(); err != nil {
			return err
		}
	}
	return nil
}

// Label reports whether s may be a broker's name: one label of a host name, in
// lower case (RFC 1035, section 2.3.1).
func Label(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c != '-' || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return s != "" && len(s) <= 63
}

// Inside is the endpoint's name inside.
func (e *Endpoint) Inside() string { return e.Name + Domain }

// Authority is what a request says about its host: the port only where it is
// not the one that the scheme has.
func (e *Endpoint) Authority() string {
	if e.Port == 443 {
		if strings.Contains(e.Host, ":") {
			return "[" + e.Host + "]"
		}
		return e.Host
	}
	return net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
}
