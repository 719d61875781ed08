package action

import (
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentguard/agentguard/internal/broker"
	"github.com/agentguard/agentguard/policy"
)

// Broker is an API that programs of a run may call with a credential that they
// never see.
type Broker struct {
	Name        string // inside it is NAME.broker.internal
	About       string // for people
	Source      policy.Source
	Host        string // of the upstream, which speaks TLS; an IPv6 address without brackets
	Port        uint16
	Routes      []broker.Route
	Headers     [][2]string // of each request, whatever the command says
	Pass        []string    // headers of requests that are let through besides the usual ones
	Show        []string    // headers of answers, likewise
	Credential  *Credential
	Auth        Auth
	Destination Destination
	Limits      Limits
}

// Origin is "https://HOST:PORT".
func (b *Broker) Origin() string {
	return "https://" + net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
}

// brokerLimits are those of a broker that names none: a model's answer takes minutes.
var brokerLimits = Limits{RequestBytes: 4 << 20, ResponseBytes: 16 << 20, Timeout: 10 * time.Minute, PerRun: 1000, PerMinute: 120}

// FindBroker returns the broker of a name, or nil.
func (f *File) FindBroker(name string) *Broker {
	for _, b := range f.Brokers {
		if b.Name == name {
			return b
		}
	}
	return nil
}

func (r reader) broker(e policy.Entry) *Broker {
	b := &Broker{Name: e.Name, Source: e.Source}
	if !broker.Label(e.Name) {
		r.Fail(e.Source, "lower-case letters, digits and -, at most 63", "%s is not the name of a broker", policy.Quote(e.Name))
		return b
	}
	m := r.Mapping(e.Value, e.Name, "about", "upstream", "allow", "headers", "pass_headers", "show_headers", "credential", "auth", "destination", "limits")
	b.About = r.Text(m["about"], e.Name+".about")
	r.upstream(b, m["upstream"])
	r.allow(b, m["allow"])
	for _, h := range r.Names(m["headers"], e.Name+".headers") {
		if t := r.header(h, e.Name+".headers", nil); len(t.Value) == 1 {
			b.Headers = append(b.Headers, [2]string{t.Name, t.Value[0].Literal})
		}
	}
	b.Pass = r.headerNames(m["pass_headers"], e.Name+".pass_headers")
	b.Show = r.headerNames(m["show_headers"], e.Name+".show_headers")
	if b.Credential = r.credential(m["credential"], e.Name+".credential"); b.Credential == nil {
		r.Fail(e.Source, "an API without a credential is for network.allowlist", "%s: the credential is missing", e.Name)
	}
	r.brokerAuth(b, m["auth"])
	b.Destination = r.destination(m["destination"], e.Name+".destination")
	if b.Destination.Plain {
		r.Fail(m["destination"].Source, "", "%s.destination.plain_http: a broker speaks TLS", e.Name)
	}
	b.Limits = brokerLimits
	r.limits(&b.Limits, m["limits"], e.Name)
	return b
}

// upstream reads an origin: https://HOST or https://HOST:PORT.
func (r reader) upstream(b *Broker, n *policy.Node) {
	what := b.Name + ".upstream"
	if n == nil {
		r.Fail(b.Source, "upstream: https://HOST", "%s: the upstream is missing", b.Name)
		return
	}
	text := r.Text(n, what)
	authority, ok := strings.CutPrefix(strings.TrimSuffix(text, "/"), "https://")
	if !ok || strings.ContainsAny(authority, "/?#") {
		r.Fail(n.Source, "write https://HOST or https://HOST:PORT; paths stand under allow", "%s: %s is not the origin of an https URL", what, policy.Quote(text))
		return
	}
	host, port, _ := r.authority(n, authority, what, "https")
	b.Host, b.Port = strings.Trim(host, "[]"), port
}

const routeForm = "write METHOD /PATH, as in POST /v1/messages, GET,HEAD /v1/models/{id}?limit&after or GET /files/{path...}"

// allow reads what may be asked for.
func (r reader) allow(b *Broker, n *policy.Node) {
	what := b.Name + ".allow"
	if n == nil {
		r.Fail(b.Source, routeForm, "%s: nothing is allowed", b.Name)
		return
	}
	for _, item := range r.List(n, what) {
		text := r.Text(item, what)
		methods, target, ok := strings.Cut(text, " ")
		if !ok {
			if text != "" {
				r.Fail(item.Source, routeForm, "%s: %s is no method and path", what, policy.Quote(text))
			}
			continue
		}
		path, query, asked := strings.Cut(target, "?")
		route := broker.Route{Methods: strings.Split(methods, ","), Path: path}
		for name := range strings.SplitSeq(query, "&") {
			plain, err := url.QueryUnescape(name)
			if asked && (err != nil || plain == "" || strings.Contains(name, "=")) {
				r.Fail(item.Source, routeForm, "%s: %s is not the name of a parameter", what, policy.Quote(name))
			} else if asked {
				route.Query = append(route.Query, plain)
			}
		}
		if err := route.Check(); err != nil {
			r.Fail(item.Source, routeForm, "%s: %v", what, err)
		}
		b.Routes = append(b.Routes, route)
	}
	if len(b.Routes) == 0 {
		r.Fail(n.Source, routeForm, "%s: nothing is allowed", what)
	}
}

// unpassable are headers that would tell the command of, or lead it to, what the
// broker is there to keep from it, and methods by another way.
var unpassable = []string{"Location", "Refresh", "Alt-Svc", "Authentication-Info", "X-Http-Method-Override", "X-Http-Method", "X-Method-Override", "X-Original-Url", "X-Rewrite-Url"}

// Unpassable reports whether a canonical name is not let through to or from a
// command, whatever a file says.
func Unpassable(name string) bool {
	return ReservedHeader(name) && name != "Content-Type" || slices.Contains(unpassable, name)
}

func (r reader) headerNames(n *policy.Node, what string) []string {
	var out []string
	for _, item := range r.List(n, what) {
		name, ok := CanonicalHeader(r.Text(item, what))
		if !ok || Unpassable(name) {
			r.Fail(item.Source, "", "%s: %s is not a header that is let through", what, policy.Quote(item.Text))
			continue
		}
		out = append(out, name)
	}
	return out
}

func (r reader) brokerAuth(b *Broker, n *policy.Node) {
	b.Auth = r.auth(n, b.Name+".auth", b.Credential != nil, b.Source)
	if b.Auth.Scheme == Query || b.Auth.Scheme == HMAC {
		r.Fail(n.Source, "bearer, basic or header", "%s.auth: the scheme %s is not for a broker", b.Name, b.Auth.Scheme)
	}
	if b.Auth.Header == "" {
		return
	}
	set := slices.ContainsFunc(b.Headers, func(h [2]string) bool { return h[0] == b.Auth.Header })
	if set || slices.Contains(b.Pass, b.Auth.Header) || slices.Contains(b.Show, b.Auth.Header) {
		r.Fail(b.Source, "", "%s: the header %s is the credential's", b.Name, b.Auth.Header)
	}
}
