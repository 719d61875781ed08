package gateway

import (
	"net/http"
	"slices"
	"strings"

	"github.com/agentguard/agentguard/internal/action"
)

// requestHeaders of the command are sent on. Credentials of its own, cookies,
// what describes the connection, and all others are left out.
var requestHeaders = []string{
	"Accept", "Accept-Language", "Content-Type", "Content-Language", "User-Agent", "If-Match", "If-None-Match",
	"If-Modified-Since", "If-Unmodified-Since", "Idempotency-Key",
}

// responseHeaders are given to the command, with those that have a prefix of
// limitHeaders.
var responseHeaders = []string{
	"Content-Type", "Content-Language", "Content-Disposition", "Cache-Control", "Date", "Etag", "Expires", "Last-Modified",
	"Retry-After", "Retry-After-Ms", "X-Should-Retry", "Request-Id", "X-Request-Id",
}

var limitHeaders = []string{"X-Ratelimit-", "Ratelimit-", "Anthropic-Ratelimit-"}

// request makes the headers of the request outside.
func (g *gateway) request(in http.Header) http.Header {
	out := http.Header{}
	for name, values := range in {
		if slices.Contains(requestHeaders, name) || named(g.RequestHeaders, name) {
			out[name] = values
		}
	}
	for _, h := range g.SetHeaders {
		out.Set(h[0], h[1])
	}
	if out.Get("User-Agent") == "" {
		out.Set("User-Agent", "agentguard")
	}
	// An answer that is compressed cannot be searched for the credential.
	out.Set("Accept-Encoding", "identity")
	out[http.CanonicalHeaderKey(g.Header)] = []string{string(g.Value)}
	return out
}

// answer copies what the command may see of an answer's headers.
func (g *gateway) answer(out, in http.Header) (hidden int64) {
	for name, values := range in {
		if !slices.Contains(responseHeaders, name) && !named(g.ResponseHeaders, name) &&
			!slices.ContainsFunc(limitHeaders, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}
		for _, v := range values {
			if holds(v, g.needles) || holds(name, g.needles) {
				hidden++
				continue
			}
			out.Add(name, v)
		}
	}
	return hidden
}

func named(list []string, name string) bool {
	return !action.Unpassable(name) && slices.ContainsFunc(list, func(s string) bool { return strings.EqualFold(s, name) })
}
