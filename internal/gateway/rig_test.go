package gateway

import (
	"bufio"
	"context"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentguard/agentguard/internal/broker"
)

const (
	canary = "sk-canary-Zx81/Qp+kd93hh2kaQ"
	inside = "model.broker.internal"
	plenty = time.Minute // ends a hang only
)

// rig is a server of one endpoint, with an upstream of the test's own.
type rig struct {
	t        *testing.T
	endpoint *broker.Endpoint
	server   *server
	upstream *httptest.Server

	mu     sync.Mutex
	events []broker.Event
	seen   []*http.Request // by the upstream
	bodies []string
}

// newRig serves the upstream's handler; change may alter the endpoint first.
func newRig(t *testing.T, h http.HandlerFunc, change func(*broker.Endpoint)) *rig {
	t.Helper()
	r := &rig{t: t}
	r.upstream = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.seen, r.bodies = append(r.seen, req), append(r.bodies, string(b))
		r.mu.Unlock()
		h(w, req)
	}))
	t.Cleanup(r.upstream.Close)
	r.endpoint = &broker.Endpoint{
		Name: "model", Host: "example.com", Port: 443, // what the test server's certificate is for
		Routes: []broker.Route{
			{Methods: []string{"POST"}, Path: "/v1/chat/completions", Query: []string{"beta"}},
			{Methods: []string{"GET", "HEAD"}, Path: "/v1/models/{id}"},
			{Methods: []string{"GET"}, Path: "/files/{rest...}"},
		},
		Header: "Authorization", Value: []byte("Bearer " + canary), Hide: [][]byte{[]byte(canary)},
		RequestHeaders: []string{"X-Version"}, MaxCalls: 1000, MaxRequest: 1 << 20, MaxResponse: 1 << 20, Timeout: plenty,
		RootsPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.upstream.Certificate().Raw}),
	}
	if change != nil {
		change(r.endpoint)
	}
	if err := r.endpoint.Check(); err != nil {
		t.Fatal(err)
	}
	r.start(func(ctx context.Context, e *broker.Endpoint) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", r.upstream.Listener.Addr().String())
	})
	return r
}

func (r *rig) start(dial dialFunc) {
	r.t.Helper()
	events := newReporter(func(b []byte) error {
		e, err := broker.ParseEvent(b)
		if err != nil {
			r.t.Error(err)
		}
		if strings.Contains(string(b), canary) {
			r.t.Errorf("the credential is in an event: %s", b)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, e)
		return nil
	})
	var err error
	if r.server, err = newServer(&broker.Config{Endpoints: []broker.Endpoint{*r.endpoint}}, dial, events); err != nil {
		r.t.Fatal(err)
	}
	r.server.fronts[inside].http.ReadHeaderTimeout = plenty // a test that sends nothing for long is a slow one
	r.server.serve()
	r.t.Cleanup(r.server.end)
}

// conn is a new connection to the endpoint.
func (r *rig) conn() net.Conn {
	ours, theirs := tcpPair(r.t)
	r.server.admit(inside, theirs)
	_ = ours.SetDeadline(time.Now().Add(plenty))
	r.t.Cleanup(func() { ours.Close() })
	return ours
}

func tcpPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// raw sends bytes and returns all that comes back until the connection ends.
func (r *rig) raw(request string) string {
	r.t.Helper()
	c := r.conn()
	go func() { _, _ = io.WriteString(c, request) }()
	b, _ := io.ReadAll(c) // broken off: what came
	return string(b)
}

// ask sends one request and returns the answer; err is of its body.
func (r *rig) ask(request string) (*http.Response, string, error) {
	r.t.Helper()
	c := r.conn()
	defer c.Close()
	go func() { _, _ = io.WriteString(c, request) }()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		r.t.Fatalf("%q: %v", request, err)
	}
	b, err := io.ReadAll(resp.Body)
	return resp, string(b), err
}

func post(path, body string, headers ...string) string {
	return "POST " + path + " HTTP/1.1\r\nHost: " + inside + "\r\nContent-Type: application/json\r\n" + lines(headers) + "Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
}

func get(path string, headers ...string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: " + inside + "\r\n" + lines(headers) + "\r\n"
}

func lines(headers []string) string {
	if len(headers) == 0 {
		return ""
	}
	return strings.Join(headers, "\r\n") + "\r\n"
}

func (r *rig) requests() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

// waitEvent waits for an event that fits.
func (r *rig) waitEvent(fits func(broker.Event) bool) broker.Event {
	r.t.Helper()
	for end := time.Now().Add(plenty); time.Now().Before(end); time.Sleep(time.Millisecond) {
		r.mu.Lock()
		for _, e := range r.events {
			if fits(e) {
				r.mu.Unlock()
				return e
			}
		}
		r.mu.Unlock()
	}
	r.t.Fatalf("no such event in %+v", r.events)
	return broker.Event{}
}
