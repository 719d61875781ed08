package codewatch

import "sync"

// Store is a directory for contents under their digests.
type Store interface {
	// Write makes a file in one step, so that whoever is killed meanwhile leaves no
	// part of it under its name, and follows no link.
	Write(name string, content []byte) error
}

// store is a Store with room for so many bytes.
type store struct {
	dir Store

	mu      sync.Mutex
	left    int64
	stored  uint64
	dropped uint64
	have    map[string]bool
}

// put writes a content once and reports whether it is there. size is that
// of the content, whose bytes are nil when they are too many.
func (s *store) put(sum string, content []byte, size int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.have[sum] {
		return true
	}
	if int64(len(content)) != size || size > s.left || s.dir.Write(sum, content) != nil {
		s.dropped++
		return false
	}
	if s.have == nil {
		s.have = map[string]bool{}
	}
	s.have[sum] = true
	s.left -= size
	s.stored += uint64(size)
	return true
}

func (s *store) totals() (stored, dropped uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stored, s.dropped
}
