package dispatch

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/agentguard/agentguard/internal/action"
)

// request is one request, without its credential.
type request struct {
	method  string
	url     *url.URL
	headers [][2]string
	body    []byte // nil: none
}

// render fills an action's templates with a valid input. What it returns goes
// to the origin of the action and nowhere else, whatever the input says.
func render(a *action.Action, input any) (*request, faults) {
	var f faults
	r := &request{method: a.Method, url: renderURL(&f, &a.URL, input)}
	for _, h := range a.Headers {
		r.headers = append(r.headers, [2]string{h.Name, fill(&f, h.Value, input, headerText)})
	}
	r.body = renderBody(&f, a, input)
	if len(f) == 0 && !same(&a.URL, r.url) {
		f.add("", "the URL would lead elsewhere than the action says")
	}
	return r, f
}

func renderURL(f *faults, t *action.URL, input any) *url.URL {
	var path, query strings.Builder
	for _, segment := range t.Segments {
		path.WriteByte('/')
		before := len(*f)
		part := fill(f, segment, input, pathText)
		if hasField(segment) && len(*f) == before && dots(part) {
			f.add(pointerOf(segment), "a segment of the path may not be empty or dots")
		}
		path.WriteString(part)
	}
	for i, p := range t.Query {
		if i > 0 {
			query.WriteByte('&')
		}
		query.WriteString(p.Name + "=" + fill(f, p.Value, input, queryText))
	}
	u := &url.URL{Scheme: t.Scheme, Host: t.Authority(), RawPath: path.String(), RawQuery: query.String()}
	plain, err := url.PathUnescape(u.RawPath)
	if err != nil && len(*f) == 0 {
		f.add("", "the path cannot be written")
	}
	u.Path = plain
	return u
}

func hasField(t action.Template) bool {
	return slices.ContainsFunc(t, func(p action.Part) bool { return p.Field != "" })
}

// dots reports whether servers read a segment as "here" or "above" or nothing.
func dots(segment string) bool {
	s := strings.ReplaceAll(strings.ToLower(segment), "%2e", ".")
	return s == "" || s == "." || s == ".."
}

func pointerOf(t action.Template) string {
	for _, p := range t {
		if p.Field != "" {
			return fieldPointer(p.Field)
		}
	}
	return ""
}

func fieldPointer(field string) string { return "/" + strings.ReplaceAll(field, ".", "/") }

// fill writes a template. Each field is written by text, which says what is
// wrong with it.
func fill(f *faults, t action.Template, input any, text func(string) (string, string)) string {
	var b strings.Builder
	for _, p := range t {
		if p.Field == "" {
			b.WriteString(p.Literal)
			continue
		}
		s, ok := scalar(input, p)
		if !ok {
			f.add(fieldPointer(p.Field), "expected one %s", p.Type)
			continue
		}
		escaped, problem := text(s)
		if problem != "" {
			f.add(fieldPointer(p.Field), "%s", problem)
		}
		b.WriteString(escaped)
	}
	return b.String()
}

// scalar is the text of a field, if it is of the type that the schema declares.
func scalar(input any, p action.Part) (string, bool) {
	v, ok := at(input, fieldPointer(p.Field))
	if !ok {
		return "", false
	}
	switch v := v.(type) {
	case string:
		return v, p.Type == "string" || p.Type == ""
	case bool:
		return strconv.FormatBool(v), p.Type == "boolean" || p.Type == ""
	case float64:
		return strconv.FormatInt(int64(v), 10), v == float64(int64(v)) && (p.Type == "integer" || p.Type == "")
	}
	return "", false
}

// maxField bounds a field of a URL, in bytes.
const maxField = 1024

// pathText escapes a field of a path. Servers and proxies differ in how they
// read separators, escapes, and characters that look or normalise like them, so
// those are refused and not escaped.
func pathText(s string) (escaped, problem string) {
	switch {
	case s == "":
		return "", "empty text may not stand in a path"
	case len(s) > maxField:
		return "", fmt.Sprintf("more than %d bytes may not stand in a path", maxField)
	}
	for _, c := range s {
		if c < ' ' || c > '~' || strings.ContainsRune(`/\%?#;:`, c) {
			return "", fmt.Sprintf("%+q may not stand in a path", c)
		}
	}
	return escape(s), ""
}

// queryText escapes a value of a query.
func queryText(s string) (escaped, problem string) {
	if len(s) > maxField {
		return "", fmt.Sprintf("more than %d bytes may not stand in a query", maxField)
	}
	for _, c := range s {
		if c != ' ' && !unicode.IsPrint(c) || c == utf8.RuneError {
			return "", fmt.Sprintf("%+q may not stand in a query", c)
		}
	}
	return escape(s), ""
}

// headerText passes what cannot end a line of the header.
func headerText(s string) (value, problem string) {
	if !action.ValidHeaderValue(s) {
		return "", "a header is printable ASCII, on one line"
	}
	return s, ""
}

// escape writes all but the unreserved characters (RFC 3986, 2.3) as %XX.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// same reads the finished URL as a stranger would, and holds it against the
// template: origin, number of segments, names of the query.
func same(t *action.URL, u *url.URL) bool {
	again, err := url.Parse(u.String())
	if err != nil || again.Scheme != t.Scheme || again.Host != t.Authority() || again.User != nil || again.Fragment != "" || again.Opaque != "" {
		return false
	}
	if again.EscapedPath() != u.RawPath || strings.Count(again.EscapedPath(), "/") != max(len(t.Segments), 1) {
		return false
	}
	if again.RawQuery == "" {
		return len(t.Query) == 0
	}
	parts := strings.Split(again.RawQuery, "&")
	for i, part := range parts {
		name, _, _ := strings.Cut(part, "=")
		if i >= len(t.Query) || name != t.Query[i].Name {
			return false
		}
	}
	return len(parts) == len(t.Query)
}

func renderBody(f *faults, a *action.Action, input any) []byte {
	v := input
	switch a.Body.Kind {
	case action.BodyNone:
		return nil
	case action.BodyMapped:
		var t any
		if err := json.Unmarshal(a.Body.Template, &t); err != nil {
			f.add("", "the template of the body cannot be read")
			return nil
		}
		v = mapped(f, t, input)
	}
	b, err := encode(v)
	if err != nil {
		f.add("", "the body cannot be written")
	}
	return b
}

// absent stands for a field that the input has not: its key is left out.
type absent struct{}

// mapped fills the texts of a body's template. A text that is one field has the
// field's own value and type.
func mapped(f *faults, t, input any) any {
	switch t := t.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, v := range t {
			if v = mapped(f, v, input); v != (absent{}) {
				out[key] = v
			}
		}
		return out
	case []any:
		out := []any{}
		for _, v := range t {
			if v = mapped(f, v, input); v != (absent{}) {
				out = append(out, v)
			}
		}
		return out
	case string:
		return mappedText(f, t, input)
	}
	return t
}

func mappedText(f *faults, s string, input any) any {
	t := action.ParseTemplate(s)
	if len(t) == 1 && t[0].Field != "" {
		v, ok := at(input, fieldPointer(t[0].Field))
		if !ok {
			return absent{}
		}
		return v
	}
	return fill(f, t, input, func(s string) (string, string) { return s, "" })
}

// shown is the request as it may be shown.
func (r *request) shown(proof action.Proof) *action.Request {
	out := &action.Request{Method: r.method, URL: r.url.String(), Body: string(r.body)}
	headers := r.headers
	if proof.Query != "" {
		sep := "?"
		if r.url.RawQuery != "" {
			sep = "&"
		}
		out.URL += sep + proof.Query + "=" + proof.Value
	}
	if proof.Header != "" {
		headers = append(slices.Clone(headers), [2]string{proof.Header, proof.Value})
	}
	for _, h := range append(slices.Clone(headers), r.fixed()...) {
		out.Headers = append(out.Headers, h[0]+": "+h[1])
	}
	slices.Sort(out.Headers)
	return out
}

// fixed are the headers that every request has, unless the action has its own.
func (r *request) fixed() [][2]string {
	all := [][2]string{{"Accept-Encoding", "identity"}, {"User-Agent", "agentguard"}, {"Accept", "application/json"}}
	if r.body != nil {
		all = append(all, [2]string{"Content-Type", "application/json"})
	}
	return slices.DeleteFunc(all, func(f [2]string) bool {
		return slices.ContainsFunc(r.headers, func(h [2]string) bool { return h[0] == f[0] })
	})
}
