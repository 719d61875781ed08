//go:build linux

package initproc

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// IDMap is one line of uid_map: Size ids from Inside on are those from Outside on of
// the namespace above (user_namespaces(7)).
type IDMap struct{ Inside, Outside, Size int }

// NewUserNS makes a user namespace with the same map for users and groups and
// returns its nsfs descriptor. The init program serves as its first process:
// it waits for a plan that never comes and leaves when its sockets close.
// fallback is as Config.FallbackExe.
func NewUserNS(m []IDMap, fallback string) (*os.File, error) {
	ctl, theirCtl, err := socketpair("control")
	if err != nil {
		return nil, err
	}
	defer ctl.Close()
	life, theirLife, err := socketpair("lifeline")
	if err != nil {
		return nil, errors.Join(err, theirCtl.Close())
	}
	defer life.Close()
	exe, err := openProgram(fallback)
	if err != nil {
		return nil, errors.Join(err, theirCtl.Close(), theirLife.Close())
	}
	var ids []syscall.SysProcIDMap
	for _, l := range m {
		ids = append(ids, syscall.SysProcIDMap{ContainerID: l.Inside, HostID: l.Outside, Size: l.Size})
	}
	none := ^uintptr(0)
	pid, err := syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", exe.Fd()), []string{"agentguard-userns"}, &syscall.ProcAttr{
		Env:   []string{},
		Files: []uintptr{none, none, none, theirCtl.Fd(), none, theirLife.Fd()},
		Sys:   &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true},
	})
	err = errors.Join(err, theirCtl.Close(), theirLife.Close(), exe.Close())
	if err != nil {
		return nil, err
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	life.Close()
	ctl.Close()
	for {
		if _, werr := syscall.Wait4(pid, nil, 0, nil); werr != syscall.EINTR {
			return f, errors.Join(err, werr)
		}
	}
}
