package landlock

import (
	"errors"
	"fmt"
	"os"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Grant lets the command use the hierarchy at FD, an O_PATH or mount descriptor.
type Grant struct {
	FD   int
	Kind Kind
	Dir  bool   // whether FD is a directory
	Name string // for errors: the path as the command sees it
}

// ABI returns the kernel's Landlock ABI. The error wraps ENOSYS when the
// kernel was built without Landlock and EOPNOTSUPP when it is switched off at
// boot (lsm=); landlock_create_ruleset(2).
func ABI() (int, error) {
	v, err := ll.LandlockGetABIVersion()
	if err != nil {
		return 0, fmt.Errorf("landlock_create_ruleset: %w", err)
	}
	return v, nil
}

// NewRuleset makes a ruleset that handles everything abi knows and grants
// exactly grants. The caller closes it.
func NewRuleset(abi int, grants []Grant) (*os.File, error) {
	attr := ll.RulesetAttr{HandledAccessFS: Handled(abi), Scoped: Scoped(abi)}
	fd, err := ll.LandlockCreateRuleset(&attr, 0)
	if err != nil {
		return nil, fmt.Errorf("landlock_create_ruleset for ABI %d: %w", abi, err)
	}
	f := os.NewFile(uintptr(fd), "landlock ruleset")
	for _, g := range grants {
		rule := ll.PathBeneathAttr{AllowedAccess: Rights(g.Kind, abi, g.Dir), ParentFd: g.FD}
		if rule.AllowedAccess == 0 {
			continue // the kernel refuses an empty rule with ENOMSG; no rule grants as little
		}
		if err := ll.LandlockAddPathBeneathRule(fd, &rule, 0); err != nil {
			f.Close()
			return nil, fmt.Errorf("landlock rule for %s: %w", g.Name, err)
		}
	}
	return f, nil
}

// SignalScope makes a ruleset that grants everything but signals to processes outside
// of the domain that it becomes (ABI 6, Linux 6.12). The caller closes it.
//
// Renames and links between directories are granted by a rule: a domain that says
// nothing of them refuses them (EXDEV; LANDLOCK_ACCESS_FS_REFER, landlock(7)).
func SignalScope() (*os.File, error) {
	fd, err := ll.LandlockCreateRuleset(&ll.RulesetAttr{HandledAccessFS: ll.AccessFSRefer, Scoped: ll.ScopeSignal}, 0)
	if err != nil {
		return nil, fmt.Errorf("landlock_create_ruleset for signals: %w", err)
	}
	f := os.NewFile(uintptr(fd), "landlock scope")
	root, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("open", err), f.Close())
	}
	defer unix.Close(root)
	if err := ll.LandlockAddPathBeneathRule(fd, &ll.PathBeneathAttr{AllowedAccess: ll.AccessFSRefer, ParentFd: root}, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("landlock rule for /: %w", err), f.Close())
	}
	return f, nil
}

// RestrictFlags returns the flags for landlock_restrict_self(2): from ABI 7 on
// the denials before execve, which are the canary's, are not logged.
func RestrictFlags(abi int) uint32 {
	if abi >= 7 {
		return ll.FlagRestrictSelfLogSameExecOff
	}
	return 0
}

// Constants of the system calls that the run's own process makes.
const (
	RulePathBeneath  = ll.RuleTypePathBeneath
	SysAddRule       = unix.SYS_LANDLOCK_ADD_RULE
	SysRestrictSelf  = unix.SYS_LANDLOCK_RESTRICT_SELF
	SysCreateRuleset = unix.SYS_LANDLOCK_CREATE_RULESET
)
