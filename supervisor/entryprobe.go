package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// UserNS says whether this user can have a user namespace with capabilities in it, as it is
// made for a run without root.
type UserNS struct {
	OK      bool       // then the rest is empty
	Step    string     // the call that failed
	Errno   unix.Errno // of that call
	Reason  string     // in a phrase
	Setting string     // what forbids it, as far as can be told: a sysctl with its value, or another mechanism
	Remedy  string     // what its administrator would do

	Untouched bool // of Enter: the process is as it was, in no namespace that is half its own
}

// ProbeUserNS makes such a namespace in a child that ends at once: about a millisecond.
func ProbeUserNS() UserNS { return probeUserNS(nil) }

// probeUserNS does it as another user, which takes root; nil: as ourselves.
func probeUserNS(as *syscall.Credential) UserNS {
	uid, gid := os.Geteuid(), os.Getegid()
	if as != nil {
		uid, gid = int(as.Uid), int(as.Gid)
	}
	step, errno, err := initproc.TryEnter(entryCalls(uid, gid), as, entryFallback())
	if err != nil {
		return UserNS{Reason: "it could not be tried: " + err.Error(), Remedy: "see agentguard doctor"}
	}
	if errno == 0 {
		return UserNS{OK: true}
	}
	return userNSFailure(step, errno)
}

// Refusal is the error of a run that needs one and cannot have it.
func (u UserNS) Refusal() *Refusal {
	what := "this user cannot have a user namespace: " + u.Reason
	if u.Setting != "" {
		what += " (" + u.Setting + ")"
	}
	return &Refusal{What: what, Remedy: u.Remedy}
}

// userNSFailure explains a call of entryCalls that failed.
func userNSFailure(step int, errno syscall.Errno) UserNS {
	u := UserNS{Errno: errno, Step: "fork", Remedy: "install the helper, which needs none"}
	if step == initproc.NoOutside {
		u.Reason = fmt.Sprintf("a process could not be made: %v", errno)
		return u
	}
	calls := entryCalls(0, 0).Steps
	if step >= len(calls) {
		u.Reason = "what came back was not Enter's"
		return u
	}
	u.Step = calls[step].Label
	u.Reason = fmt.Sprintf("%s: %v", u.Step, errno)
	if step == 0 {
		u.forbidden(errno)
	} else {
		u.powerless()
	}
	return u
}

// forbidden says why unshare(2) was refused.
func (u *UserNS) forbidden(errno syscall.Errno) {
	label := word("/proc/self/attr/current")
	switch {
	case errno == unix.ENOSPC && sysctl("user.max_user_namespaces") == "0":
		u.set("user.max_user_namespaces", "0", "a number such as 10000")
	case errno == unix.ENOSPC:
		u.Setting = "user.max_user_namespaces or the kernel's 32 levels of nesting are used up"
	case sysctl("kernel.unprivileged_userns_clone") == "0":
		u.set("kernel.unprivileged_userns_clone", "0", "1")
	case restrictedByAppArmor() && !confined(label): // it is about those that no profile confines
		u.set(appArmorSetting, "1", "0, or gives agentguard an AppArmor profile with `userns,`")
	case errno == unix.EINVAL || errno == unix.ENOSYS:
		u.Setting = "a kernel without CONFIG_USER_NS, or a seccomp filter of a container around us"
	case filtered():
		u.Setting = "a seccomp filter around us, as containers and runs of agentguard have it"
		u.Remedy = "let the container's profile allow unshare and clone with CLONE_NEWUSER, or install the helper"
	case u.confinedAs(label):
	default:
		u.Setting = "a security module, or a chroot around us"
	}
}

// powerless says why the namespace came without capabilities.
func (u *UserNS) powerless() {
	switch {
	case u.confinedAs(word("/proc/self/attr/current")):
	case restrictedByAppArmor():
		u.set(appArmorSetting, "1", "0, or gives agentguard an AppArmor profile with `userns,`")
	default:
		u.Setting = "a security module that takes the capabilities of new user namespaces away"
	}
}

// confinedAs blames the profile of a security module that we run in, and reports whether there is one.
func (u *UserNS) confinedAs(label string) bool {
	if !confined(label) {
		return false
	}
	u.Setting = "confined by a security module as " + label
	u.Remedy = "its administrator lets that profile make user namespaces and have capabilities in them, or starts agentguard outside of it"
	return true
}

const appArmorSetting = "kernel.apparmor_restrict_unprivileged_userns"

func (u *UserNS) set(name, is, better string) {
	u.Setting = name + "=" + is
	u.Remedy = "its administrator sets " + name + " to " + better + ", or installs the helper"
}

// restrictedByAppArmor reports what Ubuntu has since 23.10: namespaces are made, and their
// capabilities are refused.
func restrictedByAppArmor() bool { return sysctl(appArmorSetting) == "1" }

// sysctl is a kernel setting, or "" where there is none.
func sysctl(name string) string {
	b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// filtered reports whether a seccomp filter is on this process already.
func filtered() bool {
	mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	return err == nil && mode != 0 || errors.Is(err, unix.EINVAL)
}
