package action

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/agentguard/agentguard/policy"
)

// MaxActions bounds the actions of one file.
const MaxActions = 256

// reader reads one file. The tree collects the problems.
type reader struct{ *policy.Tree }

// Parse reads a file of actions. name is its path for error messages. The error
// is a policy.Errors with every problem, each with its line and column.
func Parse(name string, src []byte) (*File, error) {
	r := reader{policy.ReadTree(name, "actions", src)}
	sum := sha256.Sum256(src)
	f := &File{Name: name, Text: src, SHA256: hex.EncodeToString(sum[:])}
	if r.Root != nil {
		top := r.Mapping(r.Root, "the file", "actions", "brokers")
		if top["actions"] == nil && top["brokers"] == nil && r.Err() == nil {
			r.Fail(r.Root.Source, "start with actions: or brokers:", "the key actions is missing")
		}
		entries := r.Names(top["actions"], "actions")
		for i, e := range entries {
			if i == MaxActions {
				r.Fail(e.Source, "", "more than %d actions", MaxActions)
				break
			}
			f.Actions = append(f.Actions, r.action(e))
		}
		for i, e := range r.Names(top["brokers"], "brokers") {
			if i == MaxActions {
				r.Fail(e.Source, "", "more than %d brokers", MaxActions)
				break
			}
			f.Brokers = append(f.Brokers, r.broker(e))
		}
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return f, nil
}

// ValidName reports whether s can be the name of an action: what
// policy.Secrets accepts, but for the word that means no action there. One of that
// name would be above no ceiling.
func ValidName(s string) bool {
	return s != "" && s != "none" && len(s) <= 64 && s[0] >= 'a' && s[0] <= 'z' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
}

func (r reader) action(e policy.Entry) *Action {
	a := &Action{Name: e.Name, Source: e.Source}
	if !ValidName(e.Name) {
		r.Fail(e.Source, "lower-case letters, digits, - _ and ., at most 64, and not none", "%s is not the name of an action", policy.Quote(e.Name))
		return a
	}
	m := r.Mapping(e.Value, e.Name, "about", "input", "request", "credential", "auth", "destination", "limits", "response")
	a.About = r.Text(m["about"], e.Name+".about")
	input := r.input(a, m["input"])
	r.request(a, m["request"], input)
	a.Credential = r.credential(m["credential"], e.Name+".credential")
	a.Auth = r.auth(m["auth"], e.Name+".auth", a.Credential != nil, e.Source)
	a.Destination = r.destination(m["destination"], e.Name+".destination")
	r.checkPlain(a, m["request"])
	a.Limits = defaultLimits
	r.limits(&a.Limits, m["limits"], a.Name)
	r.response(a, m["response"])
	for _, h := range a.Headers {
		if a.Auth.Scheme != "" && h.Name == a.Auth.Header {
			r.Fail(e.Source, "", "%s: the header %s is the credential's", e.Name, h.Name)
		}
	}
	return a
}

// input keeps the schema and returns it as plain values.
func (r reader) input(a *Action, n *policy.Node) *policy.Node {
	if n == nil {
		r.Fail(a.Source, "input: {type: object, additionalProperties: false} takes {} only", "%s: the schema of the input is missing", a.Name)
		return nil
	}
	a.InputSource = n.Source
	if n.Kind != policy.MappingNode {
		r.Mapping(n, a.Name+".input")
		return nil
	}
	r.refs(n, a.Name+".input")
	a.Input = r.JSON(n, a.Name+".input")
	return n
}

// refs refuses references to other documents, and those that cannot be followed
// when an error is placed.
func (r reader) refs(n *policy.Node, what string) {
	for _, e := range n.Entries {
		if name, ok := strings.CutPrefix(e.Value.Text, "#/$defs/"); e.Name == "$ref" && e.Value.Kind == policy.TextNode && (!ok || strings.ContainsAny(name, "/~%")) {
			r.Fail(e.Value.Source, "write #/$defs/NAME", "%s: %s: a reference must lead to $defs of the same schema", what, policy.Quote(e.Value.Text))
		}
		for _, no := range []string{"$dynamicRef", "$id", "$anchor", "$dynamicAnchor", "$schema", "definitions", "dependencies"} {
			if e.Name == no {
				r.Fail(e.Source, "schemas are of draft 2020-12, in one piece", "%s: %s is not for the schema of an input", what, no)
			}
		}
		r.refs(e.Value, what)
	}
	for _, item := range n.Items {
		r.refs(item, what)
	}
}

func (r reader) request(a *Action, n, input *policy.Node) {
	what := a.Name + ".request"
	if n == nil {
		r.Fail(a.Source, "", "%s: the request is missing", a.Name)
		return
	}
	m := r.Mapping(n, what, "method", "url", "headers", "body")
	a.Method = r.Word(m["method"], what+".method", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
	fields := schemaFields(input)
	if m["url"] == nil {
		r.Fail(n.Source, "", "%s: the url is missing", what)
	} else if text := r.Text(m["url"], what+".url"); text != "" {
		a.URL = r.url(m["url"], text, what+".url", fields)
	}
	for _, e := range r.Names(m["headers"], what+".headers") {
		a.Headers = append(a.Headers, r.header(e, what+".headers", fields))
	}
	for i, h := range a.Headers {
		for _, other := range a.Headers[:i] {
			if h.Name == other.Name {
				r.Fail(m["headers"].Source, "", "%s.headers: %s is there twice", what, h.Name)
			}
		}
	}
	a.Body = r.body(m["body"], what+".body", a.Method, fields)
}

func (r reader) header(e policy.Entry, what string, fields fieldTypes) Header {
	name, ok := CanonicalHeader(e.Name)
	switch {
	case !ok:
		r.Fail(e.Source, "", "%s: %s is not the name of a header", what, policy.Quote(e.Name))
	case ReservedHeader(name):
		r.Fail(e.Source, "the connection, the body and auth decide it", "%s: %s is not for an action to set", what, name)
	}
	text := r.Text(e.Value, what+"."+e.Name)
	t := r.template(e.Value, text, what+"."+e.Name, fields)
	for _, p := range t {
		if p.Field == "" && !ValidHeaderValue(p.Literal) {
			r.Fail(e.Value.Source, "", "%s.%s: a value is printable ASCII", what, e.Name)
		}
	}
	return Header{Name: name, Value: t}
}

// body reads "input", "none" or a mapping whose texts may hold fields.
func (r reader) body(n *policy.Node, what, method string, fields fieldTypes) Body {
	carries := method == "POST" || method == "PUT" || method == "PATCH"
	switch {
	case n == nil && carries:
		return Body{Kind: BodyInput}
	case n == nil:
		return Body{Kind: BodyNone}
	case n.Kind == policy.MappingNode || n.Kind == policy.ListNode:
		r.bodyFields(n, what, fields)
		return r.carried(Body{Kind: BodyMapped, Template: r.JSON(n, what), Source: n.Source}, carries, what)
	}
	b := Body{Kind: r.Word(n, what, BodyInput, BodyNone), Source: n.Source}
	if b.Kind == BodyNone {
		return b
	}
	return r.carried(b, carries, what)
}

func (r reader) carried(b Body, carries bool, what string) Body {
	if !carries {
		r.Fail(b.Source, "write none, or another method", "%s: a request with this method has no body", what)
	}
	return b
}

func (r reader) bodyFields(n *policy.Node, what string, fields fieldTypes) {
	switch n.Kind {
	case policy.MappingNode:
		for _, e := range n.Entries {
			r.bodyFields(e.Value, what, fields)
		}
	case policy.ListNode:
		for _, item := range n.Items {
			r.bodyFields(item, what, fields)
		}
	case policy.TextNode:
		t, problem := parseTemplate(n.Text)
		if problem != "" {
			r.Fail(n.Source, braces, "%s: %s", what, problem)
			return
		}
		for _, p := range t {
			if p.Field == "" {
				continue
			}
			typ, known := fields[p.Field]
			switch {
			case !known:
				r.Fail(n.Source, "", "%s: the schema of the input has no property %s", what, policy.Quote(p.Field))
			case len(t) > 1 && !typ.inText():
				r.Fail(n.Source, `a field that stands alone, as in "{field}", keeps its type`, "%s: %s is no text, whole number or truth value that is always there", what, policy.Quote(p.Field))
			}
		}
	}
}

func (r reader) destination(n *policy.Node, what string) Destination {
	var d Destination
	if n == nil {
		return d
	}
	m := r.Mapping(n, what, "allow_private", "resolve", "plain_http", "ca_file")
	for _, item := range r.List(m["allow_private"], what+".allow_private") {
		p, err := netip.ParsePrefix(item.Text)
		if a, aerr := netip.ParseAddr(item.Text); aerr == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil || p != p.Masked() {
			r.Fail(item.Source, "write an address or a range: 10.1.0.0/16", "%s.allow_private: %s is neither", what, policy.Quote(item.Text))
			continue
		}
		d.AllowPrivate = append(d.AllowPrivate, p)
	}
	if text := r.Text(m["resolve"], what+".resolve"); text != "" {
		var err error
		if d.Resolve, err = netip.ParseAddr(text); err != nil || d.Resolve.Zone() != "" {
			r.Fail(m["resolve"].Source, "", "%s.resolve: %s is not an address", what, policy.Quote(text))
		}
	}
	d.Plain = m["plain_http"] != nil && r.Word(m["plain_http"], what+".plain_http", "loopback") == "loopback"
	if d.CAFile = r.Text(m["ca_file"], what+".ca_file"); d.CAFile != "" && !filepath.IsAbs(d.CAFile) {
		r.Fail(m["ca_file"].Source, "", "%s.ca_file: expected an absolute path", what)
	}
	return d
}

// checkPlain holds the scheme of the URL against what the destination says.
func (r reader) checkPlain(a *Action, request *policy.Node) {
	if a.URL.Scheme != "http" || request == nil {
		return
	}
	if !a.Destination.Plain {
		r.Fail(request.Source, "write https; destination: {plain_http: loopback} is for tests on this host", "%s: the request would go over plain http", a.Name)
	} else if !Loopback(a.URL.Host) {
		r.Fail(request.Source, "write https", "%s: plain http is for 127.0.0.0/8 and [::1] only", a.Name)
	}
}

// Loopback reports whether host is a loopback address, written as one.
func Loopback(host string) bool {
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.IsLoopback()
}

func (r reader) limits(l *Limits, n *policy.Node, name string) {
	if n == nil {
		return
	}
	what := name + ".limits"
	m := r.Mapping(n, what, "request_bytes", "response_bytes", "timeout", "per_run", "per_minute")
	l.RequestBytes = r.atMost(m["request_bytes"], what+".request_bytes", r.Size(m["request_bytes"], what+".request_bytes", l.RequestBytes), maxRequestBytes)
	l.ResponseBytes = r.atMost(m["response_bytes"], what+".response_bytes", r.Size(m["response_bytes"], what+".response_bytes", l.ResponseBytes), maxResponseBytes)
	l.Timeout = time.Duration(r.atMost(m["timeout"], what+".timeout", r.Span(m["timeout"], what+".timeout", int64(l.Timeout)), int64(maxTimeout)))
	l.PerRun = r.Count(m["per_run"], what+".per_run", l.PerRun, maxCalls)
	l.PerMinute = r.Count(m["per_minute"], what+".per_minute", l.PerMinute, maxCalls)
}

func (r reader) atMost(n *policy.Node, what string, v, most int64) int64 {
	if v > most {
		shown := strconv.FormatInt(most, 10)
		if strings.HasSuffix(what, "timeout") {
			shown = time.Duration(most).String()
		}
		r.Fail(n.Source, "", "%s: more than %s", what, shown)
	}
	return v
}

func (r reader) response(a *Action, n *policy.Node) {
	what := a.Name + ".response"
	a.Response.Status = []int{200, 201, 202, 204}
	if n == nil {
		return
	}
	m := r.Mapping(n, what, "status", "fields")
	if m["status"] != nil {
		a.Response.Status = nil
		for _, item := range r.List(m["status"], what+".status") {
			code, err := strconv.Atoi(item.Text)
			if err != nil || code < 200 || code > 599 || code >= 300 && code < 400 {
				r.Fail(item.Source, "from 200 to 599; redirects are never followed and never success", "%s.status: %s is no such status", what, policy.Quote(item.Text))
			}
			a.Response.Status = append(a.Response.Status, code)
		}
	}
	for _, item := range r.List(m["fields"], what+".fields") {
		if item.Kind != policy.TextNode || !ValidPointer(item.Text) {
			r.Fail(item.Source, "as in /html_url or /choices/0/text", "%s.fields: %s is not a JSON Pointer", what, policy.Quote(item.Text))
		}
		a.Response.Fields = append(a.Response.Fields, item.Text)
	}
}

// ValidPointer reports whether s is a JSON Pointer (RFC 6901) that leads below
// the root.
func ValidPointer(s string) bool {
	if s == "" || s[0] != '/' || len(s) > 512 {
		return false
	}
	rest := strings.NewReplacer("~0", "", "~1", "").Replace(s)
	return !strings.Contains(rest, "~")
}
