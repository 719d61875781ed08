package action

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/agentguard/agentguard/policy"
)

// Auth says how a credential becomes part of a request.
type Auth struct {
	Scheme string // of the constants; "" without a credential
	User   string // basic
	Header string // canonical; of all schemes but query
	Prefix string // header and hmac-sha256: what stands before the value
	Query  string // query: the parameter's name
}

// Schemes.
const (
	Bearer = "bearer"      // Authorization: Bearer VALUE (RFC 6750)
	Basic  = "basic"       // Authorization: Basic, the value is the password (RFC 7617)
	Named  = "header"      // a header of another name
	Query  = "query"       // ?NAME=VALUE; servers and proxies log it, so that it must be asked for twice
	HMAC   = "hmac-sha256" // a header with the hexadecimal HMAC of the body, keyed by the value
)

// auth reads how the credential is used; at is the action's place.
func (r reader) auth(n *policy.Node, what string, credential bool, at policy.Source) Auth {
	switch {
	case n == nil && credential:
		r.Fail(at, "auth: {scheme: bearer}", "%s: a credential without a way to use it", what)
		return Auth{}
	case n == nil:
		return Auth{}
	case !credential:
		r.Fail(n.Source, "credential: {file: PATH}", "%s: there is no credential", what)
	}
	m := r.Mapping(n, what, "scheme", "user", "header", "prefix", "name", "unsafe")
	if m["scheme"] == nil {
		r.Fail(n.Source, "bearer, basic, header, query or hmac-sha256", "%s: the scheme is missing", what)
		return Auth{}
	}
	a := Auth{Scheme: r.Word(m["scheme"], what+".scheme", Bearer, Basic, Named, Query, HMAC), Header: "Authorization"}
	wants := map[string][]string{Basic: {"user"}, Named: {"header", "prefix"}, Query: {"name", "unsafe"}, HMAC: {"header", "prefix"}}[a.Scheme]
	for _, key := range []string{"user", "header", "prefix", "name", "unsafe"} {
		if m[key] != nil && !has(wants, key) {
			r.Fail(m[key].Source, "", "%s: %s is not for the scheme %s", what, key, policy.Quote(a.Scheme))
		}
		if m[key] == nil && has(wants, key) && key != "prefix" && key != "unsafe" {
			r.Fail(n.Source, "", "%s: the scheme %s needs %s", what, a.Scheme, key)
		}
	}
	a.User = r.printable(m["user"], what+".user")
	a.Prefix = r.printable(m["prefix"], what+".prefix")
	r.authPlace(&a, m, what)
	return a
}

// authPlace reads where the credential goes.
func (r reader) authPlace(a *Auth, m map[string]*policy.Node, what string) {
	if a.Scheme == Named || a.Scheme == HMAC {
		name, ok := CanonicalHeader(r.Text(m["header"], what+".header"))
		if m["header"] != nil && (!ok || ReservedHeader(name) && name != "Authorization" && name != "Cookie") {
			r.Fail(m["header"].Source, "", "%s.header: %s is not the name of a header for a credential", what, policy.Quote(m["header"].Text))
		}
		a.Header = name
	}
	if a.Scheme != Query {
		return
	}
	a.Header, a.Query = "", r.Text(m["name"], what+".name")
	if a.Query != "" && !literalOK(a.Query, queryLiteral) {
		r.Fail(m["name"].Source, "", "%s.name: %s is not a name of a query", what, policy.Quote(a.Query))
	}
	if m["unsafe"] == nil {
		r.Fail(m["scheme"].Source, "use a header; unsafe: credential-in-url accepts it", "%s: a credential in a URL ends in the logs of servers and proxies", what)
	} else {
		r.Word(m["unsafe"], what+".unsafe", "credential-in-url")
	}
}

func (r reader) printable(n *policy.Node, what string) string {
	s := r.Text(n, what)
	if !ValidHeaderValue(s) {
		r.Fail(n.Source, "", "%s: expected printable ASCII", what)
	}
	return s
}

func has(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// Proof is what authenticates one request: a header, or a parameter of the query.
type Proof struct {
	Header, Query string // one of them
	Value         string
}

// Apply makes the proof for a request with this body. The error never has the
// secret in it.
func (a Auth) Apply(s *Secret, body []byte) (Proof, error) {
	value := s.Reveal()
	if len(value) == 0 {
		return Proof{}, errors.New("the credential is empty")
	}
	p := Proof{Header: a.Header, Query: a.Query}
	switch a.Scheme {
	case HMAC: // the key may be any bytes
		mac := hmac.New(sha256.New, value)
		mac.Write(body)
		p.Value = a.Prefix + hex.EncodeToString(mac.Sum(nil))
		return p, nil
	case Basic:
		p.Value = "Basic " + base64.StdEncoding.EncodeToString([]byte(a.User+":"+string(value)))
		return p, nil
	}
	for _, c := range value {
		if c < ' ' || c > '~' {
			return Proof{}, errors.New("the credential has bytes that cannot be sent in a header; is it the right file?")
		}
	}
	switch a.Scheme {
	case Bearer:
		p.Value = "Bearer " + string(value)
	case Named:
		p.Value = a.Prefix + string(value)
	case Query:
		p.Value = string(value)
	default:
		return Proof{}, fmt.Errorf("unknown scheme %q", a.Scheme)
	}
	return p, nil
}

// Shown is the proof of a request as it may be shown: with Hidden in it.
func (a Auth) Shown() Proof {
	p := Proof{Header: a.Header, Query: a.Query, Value: a.Prefix + Hidden}
	switch a.Scheme {
	case Bearer:
		p.Value = "Bearer " + Hidden
	case Basic:
		p.Value = "Basic " + Hidden
	}
	return p
}
