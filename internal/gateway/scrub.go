package gateway

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/url"
	"slices"
	"strings"
)

// needles are the forms in which an answer could hold a credential: as it is,
// escaped for a URL or for JSON, in hexadecimal digits, and in base64 wherever
// the encoded text around it begins and ends. What transforms it in another way,
// or tells a part of it, is not recognised.
func needles(secrets [][]byte) [][]byte {
	var out [][]byte
	add := func(s string) {
		if !slices.ContainsFunc(out, func(b []byte) bool { return string(b) == s }) {
			out = append(out, []byte(s))
		}
	}
	for _, s := range secrets {
		text := string(s)
		add(text)
		add(url.QueryEscape(text))
		add(url.PathEscape(text))
		add(strings.ToLower(url.QueryEscape(text)))
		add(hex.EncodeToString(s))
		add(strings.ToUpper(hex.EncodeToString(s)))
		quoted, err := json.Marshal(text)
		if err == nil {
			add(string(quoted[1 : len(quoted)-1]))
		}
		add(strings.ReplaceAll(text, "/", `\/`))
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

// scrubber writes what it is given to dst, with every needle overwritten by as
// many asterisks, so that lengths stay true. What could be the beginning of one
// is held until more has come; nothing else is.
type scrubber struct {
	dst     io.Writer
	needles [][]byte
	raw     []byte // not written yet
	clean   []byte // the same, overwritten
	found   int64
}

// Write takes a piece of an answer.
func (s *scrubber) Write(p []byte) (int, error) {
	from := len(s.raw)
	s.raw, s.clean = append(s.raw, p...), append(s.clean, p...)
	for _, n := range s.needles {
		s.hide(n, max(0, from-len(n)+1))
	}
	return len(p), s.release(len(s.raw) - s.held())
}

// hide overwrites a needle wherever it ends in what is new.
func (s *scrubber) hide(n []byte, at int) {
	for {
		i := bytes.Index(s.raw[at:], n)
		if i < 0 {
			return
		}
		at += i
		for k := range n {
			s.clean[at+k] = '*'
		}
		s.found++
		at++
	}
}

// held is how many bytes at the end may begin a needle.
func (s *scrubber) held() int {
	most := 0
	for _, n := range s.needles {
		for k := min(len(n)-1, len(s.raw)); k > most; k-- {
			if bytes.HasSuffix(s.raw, n[:k]) {
				most = k
				break
			}
		}
	}
	return most
}

func (s *scrubber) release(n int) error {
	if n == 0 {
		return nil
	}
	_, err := s.dst.Write(s.clean[:n])
	s.raw, s.clean = append(s.raw[:0], s.raw[n:]...), append(s.clean[:0], s.clean[n:]...)
	return err
}

// flush writes what is held: no more comes.
func (s *scrubber) flush() error { return s.release(len(s.raw)) }

// holds reports whether a text has a needle in it.
func holds(text string, needles [][]byte) bool {
	return slices.ContainsFunc(needles, func(n []byte) bool { return strings.Contains(text, string(n)) })
}
