package policy

import (
	"path/filepath"
	"strings"
)

// broad are directories that hold other people's files, keys or control of the
// host: to grant one whole is rarely what was meant.
var broad = [...]string{
	"/", "/boot", "/dev", "/etc/agentguard", "/etc/ssh", "/home", "/proc", "/root", "/run", "/run/user",
	"/sys", "/var", "/var/lib", "/var/lib/agentguard", "/var/run",
}

// broadWritable are directories that are harmless to read and give away the
// host when written.
var broadWritable = [...]string{"/bin", "/etc", "/lib", "/lib32", "/lib64", "/opt", "/sbin", "/srv", "/usr", "/usr/local"}

// checkMounts refuses two mounts in one place and grants that are too broad.
func (p *Policy) checkMounts() Errors {
	var errs Errors
	taken := map[string]grantedMount{}
	for _, g := range p.grantedMounts() {
		if why := tooBroad(g); why != "" && !hasText(p.Unsafe, unsafeBroadMount) {
			errs = append(errs, needs(unsafeBroadMount, g.Source, g.clause, quote(g.Path)+" "+why))
		}
		if first, dup := taken[g.At]; dup {
			errs = append(errs, wrong("keep one, or remove the other with a ! entry", "%s: %s is mounted already by %s at %s",
				g.clause, quote(g.At), first.clause, first.Source).at(g.Source, g.clause))
			continue
		}
		taken[g.At] = g
	}
	return errs
}

// grantedMount is a mount with the key that granted it.
type grantedMount struct {
	Mount
	clause   string
	writable bool
}

func (p *Policy) grantedMounts() []grantedMount {
	var all []grantedMount
	for _, l := range []struct {
		list     []Mount
		clause   string
		writable bool
	}{
		{p.ReadOnly, "filesystem.read_only_mounts", false},
		{p.Writable, "filesystem.writable_mounts", true},
		{p.Cow, "filesystem.cow_mounts", false},
	} {
		for _, m := range l.list {
			all = append(all, grantedMount{m, l.clause, l.writable})
		}
	}
	return all
}

// tooBroad says why a mount needs a word under unsafe; "" when it does not.
func tooBroad(g grantedMount) string {
	for _, b := range broad {
		if g.Path == b {
			return "is a broad mount"
		}
	}
	if filepath.Dir(g.Path) == "/home" {
		return "is a home directory: it holds keys and credentials"
	}
	for _, b := range broadWritable {
		if g.writable && g.Path == b {
			return "is a system directory, and would be writable"
		}
	}
	return ""
}

// BroadMount says why a grant of a host path needs the word broad-mount under
// unsafe, as the end of a sentence about it; "" when it does not.
func BroadMount(path string, writable bool) string {
	return tooBroad(grantedMount{Mount: Mount{Path: path}, writable: writable})
}

// SocketWord returns the word under unsafe that a host's socket needs, "" when
// it needs none.
func SocketWord(path string) string {
	word, _ := socketWord(path)
	return word
}

// checkSockets refuses sockets that are the whole authority of their owner.
func (p *Policy) checkSockets() Errors {
	var errs Errors
	for _, u := range p.Unix {
		word, what := socketWord(u.Value)
		if word != "" && !hasText(p.Unsafe, word) {
			errs = append(errs, needs(word, u.Source, "network.unix", quote(u.Value)+" is "+what))
		}
	}
	return errs
}

// socketWord returns the word under unsafe that a well-known socket needs.
func socketWord(path string) (word, what string) {
	base := filepath.Base(path)
	switch {
	case base == "docker.sock", base == "containerd.sock", base == "podman.sock", base == "crio.sock", base == "buildkitd.sock",
		base == "containerd.sock.ttrpc", base == "cri-dockerd.sock", strings.HasSuffix(path, "/lxd/unix.socket"), strings.HasSuffix(path, "/incus/unix.socket"):
		return unsafeDockerSocket, "a container engine's socket: whoever reaches it is root on the host"
	case strings.HasPrefix(base, "agent.") && strings.Contains(path, "/ssh-"), strings.HasPrefix(base, "S.gpg-agent"),
		strings.Contains(path, "/keyring/"), base == "ssh-agent.socket", base == "ssh_auth_sock",
		base == "openssh_agent", strings.Contains(path, "/.ssh/agent/"), // Debian's unit; ssh-agent(1) from OpenSSH 10.1 on
		strings.HasSuffix(path, "/gcr/ssh"), strings.HasSuffix(path, "/.1password/agent.sock"), strings.HasPrefix(base, "vscode-ssh-auth"):
		return unsafeSSHAgent, "an agent's socket: whoever reaches it uses the keys"
	case base == "system_bus_socket", base == "bus", strings.HasPrefix(base, "dbus-"), strings.Contains(path, "/systemd/private"):
		return unsafeDBus, "a message bus: services of the host take orders from it"
	}
	return "", ""
}

// UnsafeSockets lists the granted sockets that are the whole authority of their
// owner, each with its word under unsafe: a summary must name them.
func (p *Policy) UnsafeSockets() []string {
	var out []string
	for _, u := range p.Unix {
		if word, _ := socketWord(u.Value); word != "" {
			out = append(out, word+": "+printable(u.Value))
		}
	}
	return out
}
