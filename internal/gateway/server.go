package gateway

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/agentguard/agentguard/internal/broker"
)

const (
	headLimit      = 10 * time.Second // for the command to send the head of a request
	idleLimit      = 2 * time.Minute  // between requests
	maxConnections = 128              // of the command's, at once
	endLimit       = 2 * time.Second  // for calls that the end of the run breaks off to be told
)

// server serves the connections that it is given.
type server struct {
	gateways []*gateway
	fronts   map[string]*front
	events   *reporter
	slots    chan struct{}
}

// front is the HTTP server of one endpoint, and the listener that it has.
type front struct {
	http    *http.Server
	come    chan net.Conn
	done    chan struct{}
	closing sync.Once
}

func newServer(cfg *broker.Config, dial dialFunc, events *reporter) (*server, error) {
	s := &server{fronts: map[string]*front{}, events: events, slots: make(chan struct{}, maxConnections)}
	var roots *x509.CertPool
	if slices.ContainsFunc(cfg.Endpoints, func(e broker.Endpoint) bool { return len(e.RootsPEM) == 0 }) {
		var err error
		if roots, err = x509.SystemCertPool(); err != nil {
			return nil, fmt.Errorf("the host's certificates: %w", err)
		}
	}
	calls := make(chan struct{}, maxAtOnce)
	for i := range cfg.Endpoints {
		g, err := newGateway(&cfg.Endpoints[i], roots, dial, events, calls)
		if err != nil {
			return nil, err
		}
		s.gateways = append(s.gateways, g)
		s.fronts[g.Inside()] = newFront(g)
	}
	return s, nil
}

func newFront(h http.Handler) *front {
	f := &front{come: make(chan net.Conn), done: make(chan struct{})}
	f.http = &http.Server{
		Handler: h, ReadHeaderTimeout: headLimit, IdleTimeout: idleLimit, MaxHeaderBytes: maxHeads, DisableGeneralOptionsHandler: true,
		ErrorLog: log.New(io.Discard, "", 0), // what it says is of the command's making
	}
	f.http.Protocols = new(http.Protocols)
	f.http.Protocols.SetHTTP1(true)
	return f
}

// serve serves until end.
func (s *server) serve() {
	for _, f := range s.fronts {
		go func() { _ = f.http.Serve(f) }()
	}
}

// admit serves one connection of the command's to an endpoint.
func (s *server) admit(host string, c net.Conn) {
	f := s.fronts[host]
	if f == nil {
		c.Close()
		return
	}
	select {
	case s.slots <- struct{}{}:
	default:
		c.Close()
		return
	}
	c = &counted{Conn: c, leave: sync.OnceFunc(func() { <-s.slots })}
	select {
	case f.come <- c:
	case <-f.done:
		c.Close()
	}
}

// end breaks off what is open and reports what there was.
func (s *server) end() {
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	for _, f := range s.fronts {
		_ = f.http.Close() // the contexts of calls end with their connections
	}
	for range maxAtOnce { // each call has one of these until it is told
		select {
		case s.gateways[0].slots <- struct{}{}:
		case <-ctx.Done():
		}
	}
	s.events.flush()
	for _, g := range s.gateways {
		g.transport.CloseIdleConnections()
		s.events.emit(g.usage())
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	leave func()
}

func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}

// Accept waits for the next connection that was handed over.
func (f *front) Accept() (net.Conn, error) {
	select {
	case c := <-f.come:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (f *front) Close() error {
	f.closing.Do(func() { close(f.done) })
	return nil
}

// Addr is no address: the sockets are made elsewhere.
func (f *front) Addr() net.Addr { return &net.UnixAddr{Name: "handed over", Net: "unix"} }

// connOf makes a connection of a descriptor that came in a message.
func connOf(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "connection")
	c, err := net.FileConn(f)
	return c, errors.Join(err, f.Close())
}
