package supervisor

import (
	"os"
	"sync"

	"github.com/agentguard/agentguard/internal/runs"
)

// codeStore is the directory code/ of a run, made when something goes into it.
type codeStore struct {
	run *runs.RunDir

	once sync.Once
	dir  *runs.RunDir
	err  error
}

// Write makes an object of the store.
func (s *codeStore) Write(name string, content []byte) error {
	s.once.Do(func() { s.dir, s.err = s.run.Sub(runs.CodeDir) })
	if s.err != nil {
		return s.err
	}
	return s.dir.WriteFile(name, content, false)
}

// Close closes the directory, when nothing is written any more.
func (s *codeStore) Close() error {
	s.once.Do(func() { s.err = os.ErrClosed })
	if s.dir == nil {
		return nil
	}
	return s.dir.Close()
}
