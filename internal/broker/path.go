package broker

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// A path has one reading or none: what another program might take for something
// else (dot segments, empty segments, parameters after ";", back slashes, slashes
// that are escaped, what is escaped twice) is refused and not put right, so that
// what was matched is what the upstream gets.

const (
	maxPath  = 2048 // bytes, as it was sent
	maxQuery = 4096
)

var (
	errPathForm  = errors.New("the path is not in its plain form")
	errQueryForm = errors.New("the query is not in its plain form")
)

// ParsePath splits a path into its segments and takes their escapes away.
func ParsePath(path string) ([]string, error) {
	if len(path) > maxPath || !strings.HasPrefix(path, "/") {
		return nil, errPathForm
	}
	parts := strings.Split(path[1:], "/")
	for i, s := range parts {
		if strings.ContainsFunc(s, odd) {
			return nil, errPathForm
		}
		plain, err := url.PathUnescape(s)
		last := i == len(parts)-1
		if err != nil || plain == "" && !last || !utf8.ValidString(plain) || dots(plain) || strings.ContainsFunc(plain, misread) {
			return nil, errPathForm
		}
		parts[i] = plain
	}
	return parts, nil
}

// dots reports a segment of dots and blanks only.
func dots(s string) bool { return s != "" && strings.Trim(s, ". ") == "" }

// odd is what has to be escaped in a path (RFC 3986, section 3.3).
func odd(c rune) bool {
	return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"#<>?[\]^{|}`+"`", c)
}

// misread is what some program takes for the end of a segment, or would read
// once more.
func misread(c rune) bool { return c < ' ' || c == 0x7f || strings.ContainsRune(`/\;%?#`, c) }

// EscapePath is the one form in which a path is sent on.
func EscapePath(parts []string) string {
	var b strings.Builder
	for _, s := range parts {
		b.WriteString("/" + url.PathEscape(s))
	}
	return b.String()
}

// ParseQuery reads a query strictly: the names must be among those allowed. It
// returns the form in which it is sent on.
func ParseQuery(query string, allowed []string) (string, error) {
	if len(query) > maxQuery || strings.ContainsFunc(query, func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '#' || c == ';' }) {
		return "", errQueryForm
	}
	var out []string
	for p := range strings.SplitSeq(query, "&") {
		k, v, has := strings.Cut(p, "=")
		key, err := url.QueryUnescape(k)
		if err != nil || key == "" {
			return "", errQueryForm
		}
		value, err := url.QueryUnescape(v)
		if err != nil {
			return "", errQueryForm
		}
		if !slices.Contains(allowed, key) {
			return "", fmt.Errorf("the parameter %.64q is not allowed", key)
		}
		k = url.QueryEscape(key)
		if has {
			k += "=" + url.QueryEscape(value)
		}
		out = append(out, k)
	}
	return strings.Join(out, "&"), nil
}

// String is the route as a file of actions has it.
func (r *Route) String() string {
	s := strings.Join(r.Methods, ",") + " " + r.Path
	for i, name := range r.Query {
		s += map[bool]string{true: "?", false: "&"}[i == 0] + url.QueryEscape(name)
	}
	return s
}

// Check says what is wrong with a route.
func (r *Route) Check() error {
	if len(r.Methods) == 0 {
		return fmt.Errorf("%s: no method is allowed", r.Path)
	}
	for _, m := range r.Methods {
		if !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}, m) {
			return fmt.Errorf("%s: the method %.16q cannot be allowed", r.Path, m)
		}
	}
	if !strings.HasPrefix(r.Path, "/") {
		return fmt.Errorf("%.64q is no path", r.Path)
	}
	parts := strings.Split(r.Path[1:], "/")
	for i, s := range parts {
		name, field := fieldName(s)
		rest := strings.HasSuffix(name, "...")
		switch {
		case field && (strings.TrimSuffix(name, "...") == "" || rest && i < len(parts)-1),
			!field && (s == "" && i < len(parts)-1 || dots(s) || strings.ContainsFunc(s, odd) || strings.ContainsFunc(s, misread)):
			return fmt.Errorf("%.64q is not a path in its plain form", r.Path)
		}
	}
	return nil
}

// fieldName is what stands between the braces of a segment.
func fieldName(s string) (string, bool) {
	if strings.HasPrefix(s, "{") && strings.HasSuffix(s, "}") {
		return s[1 : len(s)-1], true
	}
	return "", false
}

// matches reports whether the route has a path.
func (r *Route) matches(parts []string) bool {
	for t := range strings.SplitSeq(r.Path[1:], "/") {
		if len(parts) == 0 {
			return false
		}
		name, field := fieldName(t)
		switch {
		case field && strings.HasSuffix(name, "..."):
			return parts[0] != ""
		case field && parts[0] == "", !field && parts[0] != t:
			return false
		}
		parts = parts[1:]
	}
	return len(parts) == 0
}

// Find returns the route that a request asks for; other is one with the path but
// not the method.
func (e *Endpoint) Find(method string, parts []string) (found, other *Route) {
	for i := range e.Routes {
		r := &e.Routes[i]
		if !r.matches(parts) {
			continue
		}
		if slices.Contains(r.Methods, method) {
			return r, nil
		}
		other = r
	}
	return nil, other
}
