package trace

import (
	"bytes"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Sentence says in one line what was refused, by what, and what would allow it:
//
//	denied open /etc/shadow (EACCES; landlock, filesystem.read_only_mounts)
//	denied connect 192.0.2.1:443 (EPERM; bpf, network.egress): add --allow 192.0.2.1:443
//
// Everything that came from the command is quoted.
func Sentence(e *Event) string {
	b := append([]byte("denied "), act(e)...)
	if o := Object(e); o != "" {
		b = append(append(b, ' '), o...)
	}
	if len(e.To) > 0 {
		b = appendQuote(append(b, " to "...), e.To[:min(len(e.To), maxShown)])
	}
	var why []string
	if e.Errno != 0 {
		why = append(why, ErrnoName(e.Errno)+";")
	}
	switch layer := string(e.Layer); {
	case e.Layer == LayerNone:
		why = append(why, "not by agentguard")
	case layer != "" && e.Certainty == Inferred:
		why = append(why, "probably "+word1(layer))
	case layer != "":
		why = append(why, word1(layer))
	}
	s := strings.TrimSuffix(strings.Join(why, " "), ";")
	if e.Rule != "" {
		s += ", " + word1(e.Rule)
	}
	if s != "" {
		b = append(b, " ("+strings.TrimPrefix(s, ", ")+")"...)
	}
	if e.Remedy != "" && !secret(e) {
		b = append(b, ": "...)
		if !strings.HasPrefix(e.Remedy, "install ") { // what to do, and not what to write
			b = append(b, "add "...)
		}
		b = append(b, Line(e.Remedy)...)
	}
	if n := e.Times(); n > 1 {
		b = append(b, ", "+strconv.FormatUint(n, 10)+" times"...)
	}
	return string(b)
}

// act names what was tried.
func act(e *Event) string {
	switch {
	case e.Kind == KindDeny && e.Syscall != "":
		return word1(e.Syscall)
	case e.Kind == KindOpen && (e.Access == "w" || e.Access == "rw"):
		return "open for writing"
	case e.Kind == KindExecFail:
		return "exec"
	}
	return word1(string(e.Kind))
}

// word1 passes vocabulary of ours through, which in a hostile record may be
// anything.
func word1(s string) string {
	if bare, _ := classify(s); bare {
		return s
	}
	return Quote(s)
}

const maxShown = 4096 // bytes of a path in a sentence: more than a Linux path has

// Object names what an event was about, quoted: a path, an address, a name, a
// socket family; "" if nothing.
func Object(e *Event) string {
	switch {
	case e.Kind == KindCall:
		return joined(Quote(e.Name), word1Or(e.Method), Quote(e.Path[:min(len(e.Path), maxShown)]))
	case len(e.Path) > maxShown || e.PathLen != 0:
		full := max(len(e.Path), int(e.PathLen))
		return Quote(e.Path[:min(len(e.Path), maxShown)]) + "... (" + strconv.Itoa(full) + " bytes)"
	case len(e.Path) > 0:
		return Quote(e.Path)
	case len(e.Name) > 0 && e.Port != 0:
		return Quote(endpoint(e))
	case e.Addr.IsValid() && e.Kind != KindDNS:
		return endpoint(e)
	case len(e.Name) > 0:
		return Quote(e.Name)
	case e.Target.Pid != 0:
		return "process " + strconv.Itoa(int(e.Target.Pid))
	case e.Family != "":
		return strings.TrimSpace(word1(e.Family) + " " + word1Or(e.Proto))
	}
	return word1Or(e.Limit)
}

func word1Or(s string) string {
	if s == "" {
		return ""
	}
	return word1(s)
}

// endpoint renders "NAME:PORT", where the name is known, or "ADDR:PORT", with
// "udp://" before it for UDP, as --allow takes it.
func endpoint(e *Event) string {
	s := netip.AddrPortFrom(e.Addr.Unmap().WithZone(""), e.Port).String()
	if len(e.Name) > 0 {
		s = string(e.Name) + ":" + strconv.Itoa(int(e.Port))
	}
	if e.Proto == "udp" {
		return "udp://" + s
	}
	return s
}

// Remedy returns the flag of "agentguard exec" that would allow a refused act,
// shell-quoted, or "" when no flag does or when it would hand out credentials.
// The caller decides first that policy, and not ordinary permissions, refused it.
func Remedy(e *Event) string {
	if secret(e) {
		return ""
	}
	if name, ok := bytes.CutSuffix(e.Name, []byte(brokerDomain)); ok {
		if e.Kind == KindDNS && hostName(e.Name) && !bytes.Contains(name, []byte{'.'}) {
			return "--broker " + string(name)
		}
		return "" // a broker has the one port
	}
	switch e.Kind {
	case KindConnect, KindSend, KindBind:
		if e.Family == "unix" && absolute(e.Path) {
			return "--unix " + Quote(e.Path)
		}
		if e.Addr.IsValid() && e.Kind != KindBind && e.Port != 0 && !metadata(e.Addr) && (len(e.Name) == 0 || hostName(e.Name)) {
			return "--allow " + Quote(endpoint(e))
		}
	case KindDNS:
		if hostName(e.Name) {
			return "--allow " + string(e.Name) + ":443"
		}
	case KindOpen:
		if absolute(e.Path) && e.Access != "w" && e.Access != "rw" {
			return "--ro " + Quote(e.Path)
		}
		if absolute(e.Path) {
			return "--rw " + Quote(e.Path)
		}
	case KindExec, KindExecFail, KindMmapExec:
		if absolute(e.Path) {
			return "--ro " + Quote(e.Path)
		}
	case KindTruncate, KindChmod, KindChown, KindSetxattr:
		if absolute(e.Path) {
			return "--rw " + Quote(e.Path)
		}
	case KindCreate, KindUnlink, KindRename, KindMkdir, KindLink:
		if d := path.Dir(string(e.Path)); absolute(e.Path) && d != "/" {
			return "--rw " + Quote(d)
		}
	}
	return ""
}

// brokerDomain is what the names of brokers end with inside (docs/broker.md).
const brokerDomain = ".broker.internal"

// metadataServices hand out the credentials of the machine to whoever asks.
var metadataServices = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fd00:ec2::254/128"),
	netip.MustParsePrefix("168.63.129.16/32"), netip.MustParsePrefix("100.100.100.200/32"), netip.MustParsePrefix("192.0.0.192/32"),
}

func metadata(a netip.Addr) bool {
	return slices.ContainsFunc(metadataServices, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
}

// hostName reports whether a name that the command chose can stand in a flag:
// letters, digits, hyphens and dots, of two labels or more, and no reverse
// look-up or metadata service.
func hostName(name []byte) bool {
	s := string(name)
	if len(s) > 253 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" || strings.HasSuffix(s, ".arpa") || strings.HasPrefix(s, "metadata.") {
		return false
	}
	labels := strings.Split(s, ".")
	return len(labels) > 1 && !slices.ContainsFunc(labels, func(l string) bool {
		return l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-'
	}) && strings.Trim(labels[len(labels)-1], "0123456789") != ""
}

// absolute reports whether a path can stand in a flag: the policy takes absolute
// paths without control bytes, and a cut path names something else.
func absolute(p []byte) bool {
	_, ok := classify(p)
	return ok && len(p) > 1 && p[0] == '/' && path.Clean(string(p)) == string(p)
}

func secret(e *Event) bool { return !Advisable(e.Path) || !Advisable(e.To) || e.PathLen != 0 }

// credentialNames are names of files and directories that hold credentials,
// wherever they lie, in lower case; one star at either end.
var credentialNames = []string{
	".ssh", ".aws", ".azure", ".gcloud", "gcloud", ".kube", ".docker", ".gnupg", ".pki", ".password-store", ".vault-token",
	".netrc", "_netrc", ".npmrc", ".pypirc", ".yarnrc", ".yarnrc.yml", ".git-credentials", ".pgpass", ".my.cnf", ".s3cfg", ".boto",
	".env", ".env.*", ".envrc", ".dockercfg", ".gem", ".cargo", ".m2", ".terraform.d", ".terraformrc", ".oci", ".config.json",
	"credentials", "credentials.*", "credentials-*", "application_default_credentials.json", "hosts.yml", "keyrings", "kwalletd",
	"id_*", "*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx", "*.keytab", "krb5cc_*",
	"shadow", "shadow-", "gshadow", "gshadow-", "sudoers", "sudoers.d", "master.key", "admin.conf", "kubelet.conf", "kubeconfig",
	"docker.sock", "podman.sock", "containerd.sock", "crio.sock", "buildkitd.sock", "ssh-agent*", "agent.*", "s.gpg-agent*",
	"secrets", "serviceaccount", "environ", "mem", "kmem", "kcore",
}

// Advisable reports whether a remedy may name a path: not when it lies at or
// below something that usually holds credentials. It errs towards no.
func Advisable(p []byte) bool {
	for name := range bytes.SplitSeq(p, []byte{'/'}) {
		lower := string(bytes.ToLower(name))
		if slices.ContainsFunc(credentialNames, func(pattern string) bool { return matches(lower, pattern) }) {
			return false
		}
	}
	return true
}

// matches knows one star, at either end.
func matches(name, pattern string) bool {
	if rest, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, rest)
	}
	if rest, ok := strings.CutPrefix(pattern, "*"); ok {
		return strings.HasSuffix(name, rest) && name != rest
	}
	return name == pattern
}
