package cgroup

import (
	"os"
	"path/filepath"
)

// Freeze stops every task of the leaf at its next return to user space, or lets
// them go on (cgroup.freeze, Linux 5.2). A task that waits in the kernel is
// woken for it, as by SIGSTOP: of the calls that cannot be restarted, such as
// epoll_wait(2), some then fail with EINTR (signal(7)). Frozen tasks can be
// killed. The v1 freezer, whose tasks cannot, is never used. It must not be
// called by two goroutines at a time, nor after Remove.
func (l *Leaf) Freeze(on bool) error {
	if l == nil {
		return nil
	}
	if l.freezer == nil {
		f, err := os.OpenFile(filepath.Join(l.Path, "cgroup.freeze"), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		l.freezer = f
	}
	state := "0"
	if on {
		state = "1"
	}
	_, err := l.freezer.WriteAt([]byte(state), 0)
	return err
}
