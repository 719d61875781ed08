package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/agentguard/agentguard/internal/mountinfo"
)

// containerMarks are words in the path of a cgroup that container engines choose.
var containerMarks = []string{"docker", "kubepods", "containerd", "libpod", "lxc", "crio", "buildkit", "garden", "ecs"}

func findContainer() sign {
	var s sign
	if m := word("/run/systemd/container"); m != "" {
		s.add("/run/systemd/container says " + m)
		s.Name = m
	}
	if v := environValue(sample("/proc/1/environ"), "container"); v != "" {
		s.add("PID 1 has container=" + v)
		s.Name = v
	}
	s.addIf(os.Getenv("KUBERNETES_SERVICE_HOST") != "", "KUBERNETES_SERVICE_HOST is set")
	if m := cgroupMark(sample("/proc/self/cgroup")); m != "" {
		s.add("its cgroup is named for " + m)
	}
	if ns := foreignNamespaces(os.Readlink); len(ns) > 0 {
		s.add("namespaces that are not the host's: " + strings.Join(ns, ", "))
	}
	s.rootOf(exists, readMounts())
	if comm := word("/proc/1/comm"); s.Found && comm != "" { // hidepid may hide it
		s.add("PID 1 is " + comm)
	}
	return s
}

// rootOf looks for what container engines leave in a root. Alone it proves
// nothing: machines are booted from container images and live media too.
func (s *sign) rootOf(exists func(string) bool, mounts []mountinfo.Mount) {
	weak := len(s.Evidence)
	if rootKind(mounts) == "overlay" {
		s.Evidence = append(s.Evidence, "the root file system is an overlay")
	}
	for _, f := range []struct{ path, name string }{{"/.dockerenv", "docker"}, {"/run/.containerenv", "podman"}} {
		if !exists(f.path) {
			continue
		}
		s.Evidence = append(s.Evidence, f.path+" exists")
		if s.Found && s.Name == "" {
			s.Name = f.name
		}
	}
	if !s.Found && len(s.Evidence) > weak {
		s.Evidence = append(s.Evidence, "but its namespaces are the host's")
	}
}

// environValue is the quoted value of a variable in a block of environ, or "".
func environValue(block []byte, name string) string {
	for entry := range bytes.SplitSeq(block, []byte{0}) {
		if value, ok := bytes.CutPrefix(entry, []byte(name+"=")); ok {
			return wordOf(value)
		}
	}
	return ""
}

// rootKind is the type of the file system at "/"; the last mount there counts.
func rootKind(mounts []mountinfo.Mount) string {
	kind := ""
	for _, m := range mounts {
		if m.Point == "/" {
			kind = m.Kind
		}
	}
	return kind
}

func cgroupMark(cgroups []byte) string {
	for _, m := range containerMarks {
		// As the beginning of a component or after a dash: "docker-1f2e.scope", "cri-containerd-...".
		for _, before := range []string{"/", "-"} {
			if bytes.Contains(cgroups, []byte(before+m)) {
				return m
			}
		}
	}
	return ""
}

// initialNamespaces have inode numbers that are part of the kernel's interface
// (include/uapi/linux/nsfs.h, "enum init_ns_ino"; proc_ns.h before 6.18).
var initialNamespaces = []struct {
	name  string
	inode uint64
}{
	{"pid", 0xeffffffc},
	{"uts", 0xeffffffe},
	{"ipc", 0xefffffff},
	{"cgroup", 0xeffffffb},
}

const initialUserNS = 0xeffffffd

// foreignNamespaces names those of the process that are not the initial ones.
// One that cannot be read is not held against the host.
func foreignNamespaces(readlink func(string) (string, error)) []string {
	var out []string
	for _, n := range initialNamespaces {
		if foreign(readlink, n.name, n.inode) {
			out = append(out, n.name)
		}
	}
	return out
}

func foreign(readlink func(string) (string, error), name string, initial uint64) bool {
	link, err := readlink("/proc/self/ns/" + name)
	if err != nil {
		return false
	}
	inode, ok := parseNS(link, name)
	return ok && inode != initial
}

// parseNS reads "pid:[4026531836]".
func parseNS(link, name string) (uint64, bool) {
	rest, ok := strings.CutPrefix(link, name+":[")
	digits, end := strings.CutSuffix(rest, "]")
	if !ok || !end {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil
}

// ownName is the name of an envelope that is ours.
const ownName = "agentguard"

// findEnvelope looks for restrictions that another sandbox has put on this process.
func (in *inside) findEnvelope(abi int) {
	s := &in.Envelope
	status := parseStatus(sample("/proc/self/status"))
	s.addIf(status["Seccomp"] == "1", "seccomp in strict mode")
	s.addIf(status["Seccomp"] == "2", "a seccomp filter is on")
	s.addIf(status["NoNewPrivs"] == "1", "no_new_privs is set")
	if abi > 0 {
		var err error
		in.domains, err = landlockDomains()
		s.addIf(err == nil && in.domains > 0, fmt.Sprintf("Landlock domains: %d", in.domains))
	}
	s.addIf(in.userNS, "a user namespace that is not the host's")
	lacks := boundedCaps(status, sample("/proc/sys/kernel/cap_last_cap"))
	s.addIf(len(lacks) > 0, "capabilities outside of the bounding set: "+strings.Join(lacks, ", "))
	label := word("/proc/self/attr/current")
	s.addIf(confined(label), "confined by a security module as "+label)
	if slices.ContainsFunc(readMounts(), func(m mountinfo.Mount) bool { return m.Point == "/" && m.Source == "agentguard-root" }) {
		s.add("its root is the view of an agentguard run")
		s.Name = ownName
	}
}

// confined judges the label of AppArmor, SELinux or Smack; "" where there is none.
func confined(label string) bool {
	return label != "" && label != "kernel" && label != "_" && !strings.Contains(label, "unconfined")
}

// statusFields are the lines of proc_pid_status(5) by name.
type statusFields map[string]string

// parseStatus splits "Name:\tvalue" lines. The process's own name is one of the
// values; the kernel escapes newlines in it, so it cannot make a line.
func parseStatus(b []byte) statusFields {
	out := statusFields{}
	for line := range bytes.Lines(b) {
		if name, value, ok := bytes.Cut(line, []byte(":")); ok {
			if _, twice := out[string(name)]; !twice {
				out[string(name)] = string(bytes.TrimSpace(value))
			}
		}
	}
	return out
}

// mask is a field of 64 bits in hexadecimal.
func (s statusFields) mask(name string) (uint64, bool) {
	n, err := strconv.ParseUint(s[name], 16, 64)
	return n, err == nil
}

// identityMap reports whether a uid_map (user_namespaces(7)) is the initial
// namespace's. A file that cannot be read (no user namespaces) counts as it.
func identityMap(b []byte) bool {
	f := bytes.Fields(b)
	return len(f) == 0 || len(f) == 3 && string(f[0]) == "0" && string(f[1]) == "0" && string(f[2]) == "4294967295"
}

// boundedCaps names the capabilities of this kernel that the bounding set lacks.
func boundedCaps(status statusFields, last []byte) []string {
	set, ok := status.mask("CapBnd")
	n, err := strconv.Atoi(string(bytes.TrimSpace(last)))
	if !ok || err != nil || n < 0 || n > 63 {
		return nil
	}
	var out []string
	for bit := range n + 1 {
		if set&(1<<bit) == 0 {
			out = append(out, capName(bit))
		}
	}
	if len(out) > n/2 { // as a sentence, most of them say nothing
		return []string{fmt.Sprintf("%d of %d", len(out), n+1)}
	}
	return out
}

// capNames are the capabilities by number (include/uapi/linux/capability.h).
var capNames = strings.Fields(`chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable
	net_bind_service net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct
	sys_admin sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write audit_control setfcap mac_override
	mac_admin syslog wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore`)

func capName(bit int) string {
	if bit < len(capNames) {
		return "CAP_" + strings.ToUpper(capNames[bit])
	}
	return "capability " + strconv.Itoa(bit)
}
