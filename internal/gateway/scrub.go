package gateway

import (
	"bytes"
	"io"
	"slices"
	"strings"
)

// scrubber writes what it is given to dst, with every needle overwritten by as
// many asterisks, so that lengths stay true. What could be the beginning of one
// is held until more has come; nothing else is.
type scrubber struct {
	dst     io.Writer
	needles [][]byte // of [action.Echoes]
	raw     []byte   // not written yet
	clean   []byte   // the same, overwritten
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
