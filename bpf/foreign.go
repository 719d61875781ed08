package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// ErrForeign says that programs judge the parent cgroup which are not pinned where this
// process looks: those of another mount namespace, whose bpffs is not seen here. They
// know none of our runs and refuse them every socket, so that the parent is theirs.
var ErrForeign = errors.New("programs that another mount namespace has pinned judge this parent cgroup")

// checkForeign is to be called under the lock, before a set is built. Programs whose pins
// are damaged are our own, and replaced.
func (p *Programs) checkForeign(parent uint64) error {
	sets, err := os.ReadDir(p.cfg.PinDir)
	if err != nil {
		return err
	}
	for _, set := range sets {
		if !strings.HasPrefix(set.Name(), setPrefix) {
			continue
		}
		if id, err := parentOf(filepath.Join(p.cfg.PinDir, set.Name())); err != nil || id == parent {
			return nil
		}
	}
	return p.onlyAttached(0)
}

// onlyAttached checks that the parent has own programs of a kind, and no others.
func (p *Programs) onlyAttached(own int) error {
	found, err := link.QueryPrograms(link.QueryOptions{Target: int(p.parent.Fd()), Attach: ebpf.AttachCGroupInetSockCreate})
	if err != nil {
		return fmt.Errorf("query the programs of %s: %w", p.cfg.Parent, err)
	}
	if len(found.Programs) > own {
		return ErrForeign
	}
	return nil
}
