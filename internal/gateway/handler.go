// Package gateway is the process of the brokers: it takes HTTP from the command,
// adds the credential, and speaks TLS with the upstream.
//
// It has a uid that owns nothing, no capability, and a filter under which it makes
// no socket: it is given connections by the process that dials, which sees only
// TLS. It is not dumpable, so nobody but root reads its memory. It exits when the
// supervisor's end of their socket closes.
package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentguard/agentguard/internal/action"
	"github.com/agentguard/agentguard/internal/broker"
)

// httputil.ReverseProxy passes on whatever it is not told to drop: upgrades,
// trailers, 1xx answers, redirects. Here a request is made anew from the parts
// that are allowed, and an answer likewise.

// dialFunc connects to an endpoint's upstream.
type dialFunc func(ctx context.Context, e *broker.Endpoint) (net.Conn, error)

const (
	maxHeads     = 32 << 10 // bytes of a request's line and headers
	maxFields    = 100      // of them
	maxAnswerTop = 64 << 10 // bytes of an answer's
	maxAtOnce    = 16       // calls that are under way, of all brokers of a run
	bodyLimit    = time.Minute
	wordLimit    = 10 * time.Second // for the command to take words of ours
	keptIdle     = 30 * time.Second
)

// gateway serves one endpoint.
type gateway struct {
	*broker.Endpoint
	needles   [][]byte
	transport *http.Transport
	events    *reporter
	slots     chan struct{} // of all gateways
	bodyLimit time.Duration // for the command to send the body of a request

	mu             sync.Mutex
	calls          int64
	recent         []time.Time // of the last minute's calls
	sent, received atomic.Int64
	refused        atomic.Int64
}

// newGateway makes an endpoint ready. roots are the authorities of the host,
// nil for an endpoint that has its own.
func newGateway(e *broker.Endpoint, roots *x509.CertPool, dial dialFunc, events *reporter, slots chan struct{}) (*gateway, error) {
	if len(e.RootsPEM) > 0 {
		roots = x509.NewCertPool()
		if !roots.AppendCertsFromPEM(e.RootsPEM) {
			return nil, fmt.Errorf("broker %s: its authorities are not certificates in PEM", e.Name)
		}
	}
	config := &tls.Config{ServerName: e.Host, RootCAs: roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	g := &gateway{
		Endpoint: e, needles: action.Echoes(append(slices.Clone(e.Hide), e.Value)...), events: events, slots: slots, bodyLimit: bodyLimit,
		transport: &http.Transport{
			DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				raw, err := dial(ctx, e)
				if err != nil {
					return nil, err
				}
				c := tls.Client(raw, config)
				if err := c.HandshakeContext(ctx); err != nil {
					return nil, errors.Join(err, raw.Close())
				}
				return c, nil
			},
			DialContext:            func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("only TLS") },
			TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{}, // no HTTP/2
			MaxResponseHeaderBytes: maxAnswerTop, DisableCompression: true, IdleConnTimeout: keptIdle, MaxIdleConnsPerHost: 4,
		},
	}
	return g, nil
}

// refusal is a request that is not sent, or an answer that is not passed on.
type refusal struct {
	status int
	clause string // of the broker's configuration, or "http" for what no configuration allows
	text   string
}

func (r *refusal) Error() string { return r.text }

func refuse(status int, clause, format string, a ...any) *refusal {
	return &refusal{status, clause, fmt.Sprintf(format, a...)}
}

// call is a request that may be made.
type call struct {
	route *broker.Route
	url   *url.URL
	body  []byte
}

// ServeHTTP judges a request, makes the call and passes the answer on.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	started := time.Now()
	ctx, cancel := context.WithTimeout(r.Context(), g.Timeout)
	defer cancel()
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(started.Add(g.Timeout + time.Second)) // a connection that has no deadlines is gone already
	c, no := g.judge(r)
	if no == nil && !g.enter(ctx) {
		no = refuse(http.StatusServiceUnavailable, "limits.timeout", "too many calls are under way")
	} else if no == nil {
		defer func() { <-g.slots }()
		_ = rc.SetReadDeadline(time.Now().Add(g.bodyLimit))
		c.body, no = g.body(r)
	}
	if no == nil {
		no = g.count(started)
	}
	if no != nil {
		g.turnDown(w, r, no)
		return
	}
	_ = rc.SetReadDeadline(time.Time{})
	g.make(ctx, w, r, c, started)
}

// enter waits for one of the calls that may be under way.
func (g *gateway) enter(ctx context.Context) bool {
	select {
	case g.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// judge decides about all of a request but its body.
func (g *gateway) judge(r *http.Request) (*call, *refusal) {
	if no := g.form(r); no != nil {
		return nil, no
	}
	path, query, hasQuery := strings.Cut(r.RequestURI, "?")
	parts, err := broker.ParsePath(path)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "http", "%v", err)
	}
	route, other := g.Find(r.Method, parts)
	switch {
	case route == nil && other != nil:
		return nil, refuse(http.StatusMethodNotAllowed, "allow", "%s is not allowed here", r.Method)
	case route == nil:
		return nil, refuse(http.StatusForbidden, "allow", "the path is not allowed")
	}
	u := &url.URL{Scheme: "https", Host: g.Authority(), Path: "/" + strings.Join(parts, "/"), RawPath: broker.EscapePath(parts)}
	if hasQuery && query != "" {
		if u.RawQuery, err = broker.ParseQuery(query, route.Query); err != nil {
			return nil, refuse(http.StatusForbidden, "allow", "%v", err)
		}
	}
	return &call{route: route, url: u}, nil
}

// form refuses what is not a plain HTTP/1 request to this host.
func (g *gateway) form(r *http.Request) *refusal {
	host, port, _ := strings.Cut(strings.ToLower(r.Host), ":")
	fields := 0
	for _, v := range r.Header {
		fields += len(v)
	}
	switch {
	case r.ProtoMajor != 1:
		return refuse(http.StatusHTTPVersionNotSupported, "http", "only HTTP/1.1 is spoken here")
	case r.Method == http.MethodConnect || !strings.HasPrefix(r.RequestURI, "/"):
		return refuse(http.StatusBadRequest, "http", "this is no proxy: a request names a path")
	case host != g.Inside() || port != "" && port != "80":
		return refuse(http.StatusMisdirectedRequest, "http", "this connection is for http://%s", g.Inside())
	case len(r.Header["Upgrade"]) > 0 || len(r.Header["Http2-Settings"]) > 0:
		return refuse(http.StatusBadRequest, "http", "a connection is not upgraded")
	case len(r.TransferEncoding) > 0 || len(r.Trailer) > 0:
		return refuse(http.StatusLengthRequired, "http", "a body has a Content-Length and no Transfer-Encoding")
	case len(r.Header["Content-Encoding"]) > 0:
		return refuse(http.StatusUnsupportedMediaType, "http", "a body is not encoded")
	case fields > maxFields:
		return refuse(http.StatusRequestHeaderFieldsTooLarge, "http", "more than %d headers", maxFields)
	}
	return nil
}

// body reads all of a request's body before anything is sent. Its length is
// known: see form.
func (g *gateway) body(r *http.Request) ([]byte, *refusal) {
	if r.ContentLength > g.MaxRequest {
		return nil, refuse(http.StatusRequestEntityTooLarge, "limits.request_bytes", "a body may have %d bytes", g.MaxRequest)
	}
	b := make([]byte, max(r.ContentLength, 0))
	if _, err := io.ReadFull(r.Body, b); err != nil {
		return nil, refuse(http.StatusBadRequest, "http", "the body did not come whole")
	}
	return b, nil
}

// count takes one of the calls that there may be.
func (g *gateway) count(now time.Time) *refusal {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calls >= g.MaxCalls {
		return refuse(http.StatusTooManyRequests, "limits.per_run", "a run may make %d calls", g.MaxCalls)
	}
	if g.MaxPerMin > 0 {
		g.recent = slices.DeleteFunc(g.recent, func(t time.Time) bool { return now.Sub(t) >= time.Minute })
		if int64(len(g.recent)) >= g.MaxPerMin {
			return refuse(http.StatusTooManyRequests, "limits.per_minute", "a run may make %d calls in a minute", g.MaxPerMin)
		}
		g.recent = append(g.recent, now)
	}
	g.calls++
	return nil
}

// turnDown answers a request that is not sent.
func (g *gateway) turnDown(w http.ResponseWriter, r *http.Request, no *refusal) {
	g.refused.Add(1)
	path, _, _ := strings.Cut(r.RequestURI, "?")
	g.events.emit(broker.Event{Kind: broker.KindRefused, Broker: g.Name, Method: r.Method, Path: path, Status: no.status, Clause: no.clause, Text: no.text})
	w.Header().Set("Connection", "close")
	say(w, no)
}

// say answers in words of ours, in the form that SDKs read errors in.
func say(w http.ResponseWriter, no *refusal) {
	// They may be about a call whose time is up.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(wordLimit)) // a connection that has no deadlines is gone already
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(no.status)
	text := map[string]any{"error": map[string]string{"message": "agentguard: " + no.text, "type": "agentguard_broker", "code": no.clause}}
	_ = json.NewEncoder(w).Encode(text) // the command is gone: nobody to tell
}

// make makes the call.
func (g *gateway) make(ctx context.Context, w http.ResponseWriter, r *http.Request, c *call, started time.Time) {
	e := broker.Event{Kind: broker.KindCall, Broker: g.Name, Method: r.Method, Path: c.route.Path, Sent: int64(len(c.body))}
	defer func() {
		e.Duration = time.Since(started)
		g.sent.Add(e.Sent)
		g.received.Add(e.Received)
		g.events.emit(e)
	}()
	out := (&http.Request{
		Method: r.Method, URL: c.url, Host: c.url.Host, Header: g.request(r.Header), ContentLength: int64(len(c.body)),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	if len(c.body) > 0 {
		out.Body = io.NopCloser(bytes.NewReader(c.body))
		// An upstream that leaves such a body unread takes it for the next request's beginning, and
		// the credential would be in that one (RFC 9110, 9.3.1): nothing follows on the connection.
		out.Close = r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodDelete
	}
	resp, err := g.transport.RoundTrip(out)
	if err != nil {
		no := g.failure(ctx, err)
		e.Clause, e.Text = no.clause, no.text
		say(w, no)
		return
	}
	defer resp.Body.Close()
	e.Status = resp.StatusCode
	if no := g.unfit(resp); no != nil {
		e.Clause, e.Text = no.clause, no.text
		say(w, no)
		return
	}
	g.pass(ctx, w, resp, &e)
}

// failure says why there was no answer, without the words of the other side.
func (g *gateway) failure(ctx context.Context, err error) *refusal {
	var cert *tls.CertificateVerificationError
	var dial *DialError
	switch {
	case errors.As(err, &cert):
		return refuse(http.StatusBadGateway, "upstream", "the upstream's certificate is not a valid one for %s", g.Host)
	case errors.As(err, &dial):
		return refuse(http.StatusBadGateway, "upstream", "the upstream cannot be reached: %s", dial.Text)
	case ctx.Err() != nil:
		return refuse(http.StatusGatewayTimeout, "limits.timeout", "no answer within %v", g.Timeout)
	}
	return refuse(http.StatusBadGateway, "upstream", "the upstream does not answer in HTTP over TLS")
}

// unfit refuses an answer that cannot be passed on.
func (g *gateway) unfit(resp *http.Response) *refusal {
	switch {
	case resp.StatusCode < 200:
		return refuse(http.StatusBadGateway, "upstream", "the upstream changes the protocol, which is not followed")
	case resp.StatusCode >= 300 && resp.StatusCode < 400 && resp.StatusCode != http.StatusNotModified:
		return refuse(http.StatusBadGateway, "upstream", "the upstream redirects (%d), which is not followed", resp.StatusCode)
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusProxyAuthRequired: // its words often show a part of the credential
		return refuse(resp.StatusCode, "credential", "the upstream does not accept the credential (%d)", resp.StatusCode)
	case !identity(resp.Header["Content-Encoding"]):
		return refuse(http.StatusBadGateway, "upstream", "the answer is encoded and cannot be searched for the credential")
	case resp.ContentLength > g.MaxResponse:
		return refuse(http.StatusBadGateway, "limits.response_bytes", "the answer has %d bytes, more than %d", resp.ContentLength, g.MaxResponse)
	}
	return nil
}

func identity(encodings []string) bool {
	return !slices.ContainsFunc(encodings, func(s string) bool { return !strings.EqualFold(s, "identity") && s != "" })
}

// pass passes an answer on as it comes. One that has to be cut off ends with
// its connection, so that it does not look whole.
func (g *gateway) pass(ctx context.Context, w http.ResponseWriter, resp *http.Response, e *broker.Event) {
	e.Hidden = g.answer(w.Header(), resp.Header)
	if resp.ContentLength >= 0 {
		w.Header().Set("Content-Length", fmt.Sprint(resp.ContentLength))
	}
	w.WriteHeader(resp.StatusCode)
	rc := http.NewResponseController(w)
	s := &scrubber{dst: w, needles: g.needles}
	buf := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buf)
		if e.Received += int64(n); e.Received > g.MaxResponse {
			g.breakOff(e, s, "limits.response_bytes", fmt.Sprintf("the answer is longer than %d bytes", g.MaxResponse))
		}
		_, werr := s.Write(buf[:n])
		switch {
		case err != nil && ctx.Err() != nil: // an upstream that is told to end may still end in order
			g.breakOff(e, s, "limits.timeout", fmt.Sprintf("the call took longer than %v, or the command went away", g.Timeout))
		case err == io.EOF && werr == nil:
			werr = s.flush()
		case err != nil && err != io.EOF:
			g.breakOff(e, s, "upstream", "the upstream broke the answer off")
		case werr == nil:
			werr = rc.Flush()
		}
		if werr != nil {
			g.breakOff(e, s, "", "the command did not take the answer")
		}
		if err == io.EOF {
			e.Hidden += s.found
			return
		}
	}
}

func (g *gateway) breakOff(e *broker.Event, s *scrubber, clause, text string) {
	e.Clause, e.Text = clause, text
	e.Hidden += s.found
	panic(http.ErrAbortHandler) // net/http's way to close the connection; make's account is given all the same
}

// usage is the endpoint's last word.
func (g *gateway) usage() broker.Event {
	g.mu.Lock()
	defer g.mu.Unlock()
	return broker.Event{Kind: broker.KindUsage, Broker: g.Name, Count: g.calls, Refused: g.refused.Load(), Sent: g.sent.Load(), Received: g.received.Load()}
}
