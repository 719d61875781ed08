package helper

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// What says of a peer how a security module confines it. A run is made outside of that:
// it would be a way out of a profile.
//
// SO_PEERSEC is what it was when it connected; AppArmor tells that since Linux 6.17 only
// (Ubuntu earlier), so that /proc/PID/attr is asked as well.
var labelFiles = []string{"attr/current", "attr/apparmor/current", "attr/smack/current"}

// unconfinedTypes are the types of SELinux's policies that confine nobody.
var unconfinedTypes = []string{"unconfined_t", "unconfined_service_t"}

// confines reports whether a label, of whichever module, means less than its user's rights.
func confines(label string, allowed []string) bool {
	if label == "" || label == "unconfined" || slices.Contains(allowed, label) {
		return false
	}
	// AppArmor: "NAME (MODE)"; several profiles at once have //& between them, and one mode
	// only where they agree.
	if at := strings.LastIndex(label, " ("); at >= 0 && strings.HasSuffix(label, ")") {
		mode := label[at+len(" (") : len(label)-1]
		return at == 0 || mode != "unconfined" && mode != "complain"
	}
	// SELinux: USER:ROLE:TYPE[:LEVEL]
	if f := strings.SplitN(label, ":", 4); len(f) >= 3 {
		return !slices.Contains(unconfinedTypes, f[2]) && !slices.Contains(allowed, f[2])
	}
	return label != "_" // Smack's floor, which ordinary users have
}

// Unconfined refuses a peer that a security module confines. allowed are labels of the
// administrator's; of SELinux, types.
func (p *Peer) Unconfined(allowed []string) error {
	labels := []string{p.Label}
	for _, name := range labelFiles {
		l, err := p.labelIn(name)
		if err != nil {
			return err
		}
		labels = append(labels, l)
	}
	for _, l := range labels {
		if !confines(l, allowed) {
			continue
		}
		if strings.Count(l, ":") >= 2 && permissive() {
			continue
		}
		return fmt.Errorf("the caller is confined by a security module (label %q), and a run of the helper's would be outside of that; call from outside, or the administrator lists the label in labels of /etc/agentguard/helper.yaml", l)
	}
	return p.alive()
}

// labelIn reads one of the files; "" where there is no such module.
func (p *Peer) labelIn(name string) (string, error) {
	b, err := p.read(name)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return "", nil
	case err != nil:
		return "", err
	}
	return strings.TrimRight(string(b), "\x00\n"), nil
}

// permissive reports whether SELinux only warns (selinux(8)).
func permissive() bool {
	b, err := os.ReadFile("/sys/fs/selinux/enforce")
	return err == nil && strings.TrimSpace(string(b)) == "0"
}

// peerLabel is SO_PEERSEC; "" where no module tells one.
func peerLabel(fd int) (string, error) {
	b, err := peerOption(fd, unix.SO_PEERSEC) // x/sys reads 256 bytes, of which a label may have more
	switch err {
	case nil:
		return strings.TrimRight(string(b), "\x00\n"), nil
	case unix.ENOPROTOOPT, unix.EOPNOTSUPP:
		return "", nil
	}
	return "", os.NewSyscallError("getsockopt SO_PEERSEC", err)
}
