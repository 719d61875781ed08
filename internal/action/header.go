package action

import "strings"

// reserved are headers that an action may not set: those of the connection (RFC
// 9110, 7.6.1), of the body's framing, of credentials and of proxies.
var reserved = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "Http2-Settings": true,
	"Host": true, "Content-Length": true, "Content-Encoding": true, "Content-Type": true, "Accept-Encoding": true, "Expect": true,
	"Authorization": true, "Cookie": true, "Cookie2": true, "Set-Cookie": true, "Www-Authenticate": true,
	"Forwarded": true, "Via": true, "Max-Forwards": true, "Range": true,
}

// ReservedHeader reports whether a canonical name is not for an action, or a
// command, to set.
func ReservedHeader(name string) bool {
	return reserved[name] || strings.HasPrefix(name, "Proxy-") || strings.HasPrefix(name, "X-Forwarded-") || strings.HasPrefix(name, "Sec-") || name == "X-Real-Ip"
}

// CanonicalHeader returns the form in which Go's net/http keeps a name: each
// word with one capital letter; false when it is no token (RFC 9110, 5.6.2).
func CanonicalHeader(name string) (string, bool) {
	if name == "" || len(name) > 128 {
		return "", false
	}
	b := []byte(name)
	upper := true
	for i, c := range b {
		switch {
		case c >= 'a' && c <= 'z' && upper:
			b[i] = c - 'a' + 'A'
		case c >= 'A' && c <= 'Z' && !upper:
			b[i] = c - 'A' + 'a'
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return "", false
		}
		upper = c == '-'
	}
	return string(b), true
}

// ValidHeaderValue reports whether s is printable ASCII, so that it cannot end
// its line.
func ValidHeaderValue(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return len(s) <= 8192
}
