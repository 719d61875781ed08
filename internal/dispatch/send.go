package dispatch

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/agentguard/agentguard/internal/action"
)

// maxHeader bounds the header of an answer, in bytes.
const maxHeader = 64 << 10

// sender makes the requests of one action.
type sender struct {
	a      *action.Action
	client *http.Client
	to     atomic.Pointer[string] // the address that was reached last
}

// newSender makes a client that speaks HTTP/1.1 to one origin: no redirect is
// followed, no proxy asked, nothing kept between requests.
func newSender(a *action.Action, roots *x509.CertPool) *sender {
	s := &sender{a: a}
	resolver := &net.Resolver{PreferGo: true}
	lookup := func(ctx context.Context, name string) ([]netip.Addr, error) {
		return resolver.LookupNetIP(ctx, "ip", name+".") // the root dot: no search suffix
	}
	s.client = &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				c, err := a.Destination.Dial(ctx, a.URL.Host, a.URL.Port, lookup)
				if err == nil {
					to := c.RemoteAddr().String()
					s.to.Store(&to)
				}
				return c, err
			},
			TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{},
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxHeader,
		},
	}
	return s
}

// send makes one request and fills in what came of it.
func (s *sender) send(ctx context.Context, r *request, secret *action.Secret, o *action.Outcome) {
	ctx, cancel := context.WithTimeout(ctx, s.a.Limits.Timeout)
	defer cancel()
	var proof action.Proof
	if s.a.Credential != nil {
		var err error
		if proof, err = s.a.Auth.Apply(secret, r.body); err != nil {
			o.Outcome, o.Why = action.Limited, err.Error()
			return
		}
	}
	var wrote atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaderField: func(string, []string) { wrote.Store(true) }})
	begin := time.Now()
	defer func() { o.LatencyNS = time.Since(begin).Nanoseconds() }()
	o.RequestBytes = int64(len(r.body))
	res, err := s.client.Do(r.http(ctx, proof))
	if to := s.to.Load(); to != nil {
		o.Address = *to
	}
	if err != nil {
		o.Outcome, o.Why, o.Sent = action.Failed, s.reason(err, secret, wrote.Load()), action.SentNo
		if wrote.Load() {
			o.Sent = action.SentUnknown
		}
		return
	}
	defer res.Body.Close()
	o.Sent, o.Status = action.SentYes, res.StatusCode
	s.receive(res, secret, o)
}

// http is the request for the library.
func (r *request) http(ctx context.Context, proof action.Proof) *http.Request {
	u := *r.url
	if proof.Query != "" {
		if u.RawQuery != "" {
			u.RawQuery += "&"
		}
		u.RawQuery += proof.Query + "=" + escape(proof.Value)
	}
	out := (&http.Request{
		Method: r.method, URL: &u, Host: u.Host, Header: http.Header{}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	for _, h := range append(slices.Clone(r.headers), r.fixed()...) {
		out.Header[h[0]] = []string{h[1]}
	}
	if proof.Header != "" {
		out.Header[proof.Header] = []string{proof.Value}
	}
	if r.body != nil {
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(r.body)), int64(len(r.body))
	}
	if defaultPort := map[string]string{"https": ":443", "http": ":80"}[u.Scheme]; strings.HasSuffix(u.Host, defaultPort) {
		out.Host = strings.TrimSuffix(u.Host, defaultPort)
	}
	return out
}

// reason says why there was no answer. The library's own error has the URL, and
// with it perhaps the credential; after a request was written, it quotes what it could
// not read of the answer, escaped, so that no search for the credential is sure to find it.
func (s *sender) reason(err error, secret *action.Secret, wrote bool) string {
	var outer *url.Error
	if errors.As(err, &outer) {
		err = outer.Err
	}
	var dns *net.DNSError
	var errno syscall.Errno
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no whole answer within %v (limits.timeout)", s.a.Limits.Timeout)
	case echoes(err.Error(), s.a.Auth.Echoes(secret)):
		return "the answer is not HTTP, and repeats the credential"
	case errors.As(err, &dns):
		return "the name was not resolved: " + dns.Err
	case wrote && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
		return "the upstream closed the connection"
	case wrote && errors.As(err, &errno):
		return errno.Error()
	case wrote:
		return "the answer is not HTTP/1.1 as it should be"
	}
	return bounded(err.Error())
}

func bounded(s string) string {
	const most = 300
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// receive judges an answer and takes from it what the action lets through.
func (s *sender) receive(res *http.Response, secret *action.Secret, o *action.Outcome) {
	reject := func(format string, args ...any) {
		o.Outcome, o.Why, o.Response, o.Untrusted, o.Missing = action.Rejected, fmt.Sprintf(format, args...), nil, false, nil
	}
	switch {
	case res.StatusCode >= 300 && res.StatusCode < 400:
		reject("the upstream redirects (status %d); redirects are not followed", res.StatusCode)
		return
	case !slices.Contains(s.a.Response.Status, res.StatusCode):
		reject("status %d is not one of response.status", res.StatusCode)
		return
	case len(s.a.Response.Fields) == 0 || s.a.Method == http.MethodHead || res.StatusCode == http.StatusNoContent:
		o.Outcome = action.Done // nothing of the body is wanted
		return
	case !isJSON(res.Header.Get("Content-Type")):
		reject("the answer is not JSON by its Content-Type")
		return
	case res.Header.Get("Content-Encoding") != "":
		reject("the answer is encoded, which was not asked for")
		return
	case res.ContentLength > s.a.Limits.ResponseBytes:
		reject("the answer would be larger than %d bytes (limits.response_bytes)", s.a.Limits.ResponseBytes)
		return
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, s.a.Limits.ResponseBytes+1))
	o.ResponseBytes = int64(len(body))
	switch {
	case int64(len(body)) > s.a.Limits.ResponseBytes:
		reject("the answer is larger than %d bytes (limits.response_bytes)", s.a.Limits.ResponseBytes)
		return
	case err != nil:
		reject("the answer broke off: %s", s.reason(err, secret, true))
		return
	}
	s.extract(body, secret, o, reject)
}

// extract lets the fields through that the action names.
func (s *sender) extract(body []byte, secret *action.Secret, o *action.Outcome, reject func(string, ...any)) {
	v, f := decode(body)
	if len(f) > 0 {
		reject("the answer is not JSON as it should be: %s", f[0].Message)
		return
	}
	o.Outcome, o.Untrusted, o.Response = action.Done, true, map[string]json.RawMessage{}
	forms := s.a.Auth.Echoes(secret)
	for _, pointer := range s.a.Response.Fields {
		field, ok := at(v, pointer)
		if !ok {
			o.Missing = append(o.Missing, pointer)
			continue
		}
		if echoes(field, forms) {
			reject("the answer repeats the credential at %s", pointer)
			return
		}
		b, err := encode(field)
		if err != nil {
			reject("the answer cannot be passed on")
			return
		}
		o.Response[pointer] = b
	}
}

// echoes reports whether a value has one of these forms of the credential in a text, a
// number (of seventeen digits at most, as decode reads it) or a key.
func echoes(v any, forms [][]byte) bool {
	switch v := v.(type) {
	case map[string]any:
		for key, item := range v {
			if echoes(key, forms) || echoes(item, forms) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, func(item any) bool { return echoes(item, forms) })
	case float64:
		return echoes(strconv.FormatFloat(v, 'f', -1, 64), forms)
	case string:
		return slices.ContainsFunc(forms, func(e []byte) bool { return bytes.Contains([]byte(v), e) })
	}
	return false
}

func isJSON(contentType string) bool {
	t, _, err := mime.ParseMediaType(contentType)
	return err == nil && (t == "application/json" || strings.HasSuffix(t, "+json"))
}
