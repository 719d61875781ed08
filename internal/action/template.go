package action

import (
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/idna"

	"github.com/agentguard/agentguard/policy"
)

// Part is a piece of a template: a literal or a field of the input.
type Part struct {
	Literal string // as it is sent
	Field   string // dotted path of properties; "" for a literal
	Type    string // of the field: "string", "integer" or "boolean"
}

// Template is a text with fields.
type Template []Part

// URL is the template of a URL. Scheme, host and port have no fields, and those
// of the rest stand inside one path segment or one value of the query.
type URL struct {
	Scheme   string // "https", or "http" to loopback
	Host     string // lower case; an IPv6 address in brackets
	Port     uint16
	Segments []Template // of the path, after its first slash
	Query    []Param
}

// Param is a name of the query with its value.
type Param struct {
	Name  string // as it is sent
	Value Template
}

// Origin is "https://HOST:PORT".
func (u *URL) Origin() string { return u.Scheme + "://" + u.Authority() }

// Authority is "HOST:PORT".
func (u *URL) Authority() string { return u.Host + ":" + strconv.Itoa(int(u.Port)) }

const braces = "a field is written {name} or {name.name}, a brace {{ or }}"

// parseTemplate splits a text; problem says what is wrong with it.
func parseTemplate(s string) (t Template, problem string) {
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			t = append(t, Part{Literal: literal.String()})
			literal.Reset()
		}
	}
	for s != "" {
		switch {
		case strings.HasPrefix(s, "{{"), strings.HasPrefix(s, "}}"):
			literal.WriteByte(s[0])
			s = s[2:]
		case s[0] == '{':
			name, rest, closed := strings.Cut(s[1:], "}")
			if !closed || !validField(name) {
				return nil, policy.Quote(s) + " begins no field"
			}
			flush()
			t, s = append(t, Part{Field: name}), rest
		case s[0] == '}':
			return nil, "a } without a {"
		default:
			literal.WriteByte(s[0])
			s = s[1:]
		}
	}
	flush()
	return t, ""
}

// ParseTemplate splits a text of a body that Parse has accepted.
func ParseTemplate(s string) Template {
	t, _ := parseTemplate(s)
	return t
}

func validField(s string) bool {
	for name := range strings.SplitSeq(s, ".") {
		if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-$") != "" {
			return false
		}
	}
	return len(s) <= 256
}

// fieldType is what the schema says of a property.
type fieldType struct {
	types    []string
	required bool // and so are the objects that it lies in
}

// inText reports whether a value can stand in a text: a scalar whose text is the
// same for all, and which is there.
func (f fieldType) inText() bool {
	return f.required && len(f.types) == 1 && (f.types[0] == "string" || f.types[0] == "integer" || f.types[0] == "boolean")
}

// fieldTypes are the properties of a schema by dotted path.
type fieldTypes map[string]fieldType

// schemaFields finds the properties that are declared as such. What is in $defs
// or in a choice is not found, and cannot be a field.
func schemaFields(schema *policy.Node) fieldTypes {
	out := fieldTypes{}
	if schema != nil {
		out.collect(schema, "", true)
	}
	return out
}

func (f fieldTypes) collect(schema *policy.Node, prefix string, required bool) {
	needed := map[string]bool{}
	for _, n := range items(child(schema, "required")) {
		needed[n.Text] = true
	}
	props := child(schema, "properties")
	if props == nil {
		return
	}
	for _, e := range props.Entries {
		t := fieldType{required: required && needed[e.Name]}
		if typ := child(e.Value, "type"); typ != nil && typ.Kind == policy.TextNode {
			t.types = []string{typ.Text}
		}
		f[prefix+e.Name] = t
		f.collect(e.Value, prefix+e.Name+".", t.required)
	}
}

func child(n *policy.Node, name string) *policy.Node {
	for _, e := range n.Entries {
		if e.Name == name {
			return e.Value
		}
	}
	return nil
}

func items(n *policy.Node) []*policy.Node {
	if n == nil {
		return nil
	}
	return n.Items
}

// template reads a text in which every field is a scalar that is always there.
func (r reader) template(n *policy.Node, text, what string, fields fieldTypes) Template {
	t, problem := parseTemplate(text)
	if problem != "" {
		r.Fail(n.Source, braces, "%s: %s", what, problem)
		return nil
	}
	for i, p := range t {
		if p.Field == "" {
			continue
		}
		typ, known := fields[p.Field]
		switch {
		case !known:
			r.Fail(n.Source, "", "%s: the schema of the input has no property %s", what, policy.Quote(p.Field))
		case !typ.inText():
			r.Fail(n.Source, "type string, integer or boolean, and named under required", "%s: %s must be one text, whole number or truth value that is always there", what, policy.Quote(p.Field))
		default:
			t[i].Type = typ.types[0]
		}
	}
	return t
}

// url reads the template of a URL.
func (r reader) url(n *policy.Node, text, what string, fields fieldTypes) URL {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || scheme != "https" && scheme != "http" {
		r.Fail(n.Source, "write https://HOST/PATH", "%s: %s is not an https URL", what, policy.Quote(text))
		return URL{}
	}
	authority, path, _ := strings.Cut(rest, "/")
	if strings.ContainsAny(authority, "?#") {
		r.Fail(n.Source, "write https://HOST/?NAME=VALUE", "%s: %s has no path", what, policy.Quote(text))
		return URL{}
	}
	u := URL{Scheme: scheme}
	u.Host, u.Port, ok = r.authority(n, authority, what, scheme)
	if !ok {
		return u
	}
	if strings.Contains(path, "#") {
		r.Fail(n.Source, "", "%s: a fragment (#) is not sent", what)
		return u
	}
	path, query, asked := strings.Cut(path, "?")
	for part := range strings.SplitSeq(path, "/") {
		u.Segments = append(u.Segments, r.urlPart(n, part, what, fields, pathLiteral))
	}
	if !asked {
		return u
	}
	for part := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(part, "=")
		if name == "" || !literalOK(name, queryLiteral) {
			r.Fail(n.Source, "NAME=VALUE, fields in VALUE only", "%s: %s is not a name of a query", what, policy.Quote(name))
			continue
		}
		u.Query = append(u.Query, Param{name, r.urlPart(n, value, what, fields, queryLiteral)})
	}
	return u
}

// What may stand literally in a segment and in a query (RFC 3986, 3.3 and 3.4),
// besides letters, digits and escapes.
const (
	pathLiteral  = "-._~!$&'()*+,;=:@"
	queryLiteral = "-._~!$'()*,;:@/?"
)

func (r reader) urlPart(n *policy.Node, text, what string, fields fieldTypes, set string) Template {
	t := r.template(n, text, what, fields)
	whole := ""
	for _, p := range t {
		if p.Field != "" {
			whole += "x"
			continue
		}
		whole += p.Literal
		if !literalOK(p.Literal, set) {
			r.Fail(n.Source, "escape it as %XX", "%s: %s may not stand there", what, policy.Quote(p.Literal))
		}
	}
	if dots := strings.ReplaceAll(strings.ToLower(whole), "%2e", "."); set == pathLiteral && (dots == "." || dots == "..") {
		r.Fail(n.Source, "", "%s: a segment of dots leads elsewhere", what)
	}
	return t
}

// literalOK reports whether s has only characters of the set, letters, digits
// and whole escapes of two digits.
func literalOK(s, set string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(set, c) >= 0:
		case c == '%' && i+2 < len(s) && hexDigit(s[i+1]) && hexDigit(s[i+2]):
			i += 2
		default:
			return false
		}
	}
	return true
}

func hexDigit(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// authority reads HOST or HOST:PORT, without user and without fields.
func (r reader) authority(n *policy.Node, text, what, scheme string) (host string, port uint16, ok bool) {
	if strings.ContainsAny(text, "{}@%\\") {
		r.Fail(n.Source, "fields stand in the path and in values of the query; credentials under auth", "%s: %s: no field, user or escape may stand before the path", what, policy.Quote(text))
		return "", 0, false
	}
	port = map[string]uint16{"https": 443, "http": 80}[scheme]
	host = text
	if i := strings.LastIndexByte(text, ':'); i >= 0 && !strings.HasSuffix(text, "]") {
		p, err := strconv.ParseUint(text[i+1:], 10, 16)
		if err != nil || p == 0 {
			r.Fail(n.Source, "", "%s: %s has no valid port", what, policy.Quote(text))
			return "", 0, false
		}
		host, port = text[:i], uint16(p)
	}
	if bare := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"); bare != host || !strings.Contains(host, ":") {
		addr, err := netip.ParseAddr(bare)
		if err == nil && addr.Zone() == "" && !addr.Is4In6() && addr.Is6() == (bare != host) {
			return host, port, true
		}
		name, nerr := idna.Lookup.ToASCII(bare)
		if err != nil && bare == host && nerr == nil && name == strings.ToLower(bare) && validHost(name) {
			return name, port, true
		}
	}
	r.Fail(n.Source, "a name in ASCII, an IPv4 address, or an IPv6 address in brackets", "%s: %s is not a host", what, policy.Quote(host))
	return "", 0, false
}

// validHost refuses names that a resolver may take for an address (1, 0x7f.1,
// 127.1): the last label of a name has a letter (RFC 3696, section 2).
func validHost(name string) bool {
	last := name[strings.LastIndexByte(strings.TrimSuffix(name, "."), '.')+1:]
	return name != "" && len(name) <= 253 && !strings.HasSuffix(name, ".") && strings.Trim(last, "0123456789") != "" && !strings.HasPrefix(last, "0x") &&
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-.") == ""
}
