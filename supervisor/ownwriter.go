package supervisor

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ownWriter writes to a plain file of the caller's with the caller's file-system ids: written with
// root's, it would be given the blocks that a file system keeps for root (ext4's reserved ones,
// ext4_has_free_clusters in fs/ext4/balloc.c), and a user of the helper could fill a disk to its end.
type ownWriter struct {
	todo chan []byte
	done chan written
}

type written struct {
	n   int
	err error
}

// newOwnWriter begins a thread that ends with end. It takes CAP_SETUID and CAP_SETGID.
func newOwnWriter(to *os.File, c Caller) (*ownWriter, error) {
	w := &ownWriter{todo: make(chan []byte), done: make(chan written)}
	began := make(chan error, 2)
	go func() {
		began <- c.As(func() error {
			began <- nil
			for b := range w.todo {
				n, err := writeAll(to, b)
				w.done <- written{n, err}
			}
			return nil
		})
	}()
	if err := <-began; err != nil {
		return nil, err
	}
	return w, nil
}

func (w *ownWriter) Write(b []byte) (int, error) {
	w.todo <- b
	r := <-w.done
	return r.n, r.err
}

// end ends the thread. Nothing may be written any more.
func (w *ownWriter) end() { close(w.todo) }

// writeAs has plain files written in the name of the caller, if that is somebody else. It comes
// before start, and before capabilities are given up.
func (s *stdio) writeAs(c *Caller) error {
	if c == nil || c.UID == os.Getuid() {
		return nil
	}
	for _, r := range s.outs {
		var st unix.Stat_t
		if r.to == nil || unix.Fstat(int(r.to.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		var err error
		if r.own, err = newOwnWriter(r.to, *c); err != nil {
			return fmt.Errorf("writing %s for user %d: %w", r.Name, c.UID, err)
		}
	}
	return nil
}
