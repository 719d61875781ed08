package action

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"github.com/agentguard/agentguard/internal/broker"
)

// Echoes are the texts by which an answer is known to hold one of these secrets: as it
// is, escaped for a URL or for JSON, in hexadecimal digits, and in base64 wherever
// the encoded text around it begins and ends. What transforms it in another way,
// or tells a part of it, is not recognised.
func Echoes(secrets ...[]byte) [][]byte {
	var out [][]byte
	add := func(s string) {
		if !slices.ContainsFunc(out, func(b []byte) bool { return string(b) == s }) {
			out = append(out, []byte(s))
		}
	}
	for _, s := range secrets {
		text := string(s)
		if text == "" {
			continue
		}
		for _, form := range []string{
			text, url.QueryEscape(text), url.PathEscape(text), strings.ToLower(url.QueryEscape(text)),
			hex.EncodeToString(s), strings.ToUpper(hex.EncodeToString(s)), base64.RawStdEncoding.EncodeToString(s), strings.ReplaceAll(text, "/", `\/`),
		} {
			add(form)
		}
		if quoted, err := json.Marshal(text); err == nil {
			add(string(quoted[1 : len(quoted)-1]))
		}
		if len(s) < broker.MinSecret {
			continue // the few letters that it alone decides are in any text
		}
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			for offset := range 3 {
				add(aligned(enc, s, offset))
			}
		}
	}
	return out
}

// aligned is the part of a base64 text that a secret alone decides, when so many
// bytes of a group stand before it.
func aligned(enc *base64.Encoding, secret []byte, offset int) string {
	text := enc.EncodeToString(append(make([]byte, offset), secret...))
	first := (offset*8 + 5) / 6
	return text[first : (offset+len(secret))*8/6]
}

// Echoes are the forms in which an upstream could send the credential of a request back.
func (a Auth) Echoes(s *Secret) [][]byte {
	value := s.Reveal()
	if a.Scheme == Basic && len(value) > 0 {
		return Echoes(value, []byte(a.User+":"+string(value)))
	}
	return Echoes(value)
}
