package policy

import (
	"strconv"
	"strings"
)

// The words that may stand under unsafe.
const (
	unsafeCredentialEnv = "credential-env"
	unsafeDockerSocket  = "docker-socket"
	unsafeSSHAgent      = "ssh-agent"
	unsafeDBus          = "dbus"
	unsafeHostNetwork   = "host-network"
	unsafeBroadMount    = "broad-mount"
)

func unsafeWords() []string {
	return []string{unsafeBroadMount, unsafeCredentialEnv, unsafeDBus, unsafeDockerSocket, unsafeHostNetwork, unsafeSSHAgent}
}

// size is a limit in bytes; scale is the value of a number without a unit.
func size(at func(*Policy) *Limit, scale int64) limit {
	parse := func(s string) (int64, *problem) { return parseSize(s, scale) }
	return limit{at: at, parse: parse, format: formatSize, what: "a size", pattern: `^([0-9]+(\.[0-9]+)?[A-Za-z]{0,3}|none)$`}
}

// minMemory keeps "--memory 512", meant as megabytes, from being 512 bytes.
const minMemory = 1 << 20

// memory is max_memory_mb: bytes inside, MiB for a number without a unit.
// FromFlags gives a bare number the unit B, so that --memory is in bytes.
func memory() limit {
	l := size(func(p *Policy) *Limit { return &p.MaxMemory }, 1<<20)
	parse := l.parse
	l.parse = func(s string) (int64, *problem) {
		n, p := parse(s)
		if p == nil && n < minMemory {
			p = wrong("write a unit: 512M", "%d bytes: no program runs in less than 1M of memory", n)
		}
		return n, p
	}
	return l
}

// span is a limit in time.
func span(at func(*Policy) *Limit) limit {
	return limit{at: at, parse: parseSpan, format: formatSpan, what: "a duration", pattern: `^([0-9.hmsµuμn]+|none)$`}
}

// count is a limit on how many.
func count(at func(*Policy) *Limit, most int64) limit {
	parse := func(s string) (int64, *problem) { return parseCount(s, most) }
	return limit{at: at, parse: parse, format: formatCount, what: "a whole number", pattern: `^([0-9]+|none)$`}
}

// workspacePath is bounded by Bound itself: what allows it depends on the mode.
func workspacePath() scalar {
	return scalar{
		at:    func(p *Policy) (*string, *Source) { return &p.Workspace.Path, &p.Workspace.Source },
		empty: "(nothing of the current directory)",
		parse: func(v value) (string, *problem) {
			path, p := absolute(v.text, v.base)
			if p == nil && strings.Contains(v.text, ":") {
				p = wrong("the workspace keeps its path", "%s: a workspace is a PATH without :AT", quote(v.text))
			}
			return path, p
		},
	}
}

// user is a numeric uid; names are refused because they are looked up in a
// database that differs between the host and the sandbox.
func user() scalar {
	return scalar{
		at:    text(func(p *Policy) *Text { return &p.User }),
		empty: "(the owner of the workspace)",
		parse: func(v value) (string, *problem) {
			n, err := strconv.ParseUint(v.text, 10, 32)
			if err != nil || n > maxUID || octal(v.text) || v.text[0] == '+' {
				return "", wrong("write the number that `id -u NAME` prints", "%s is not a user id", quote(v.text))
			}
			return v.text, nil
		},
		within: func(s, most string) bool { return s == "" || s == most },
	}
}

func endpoints() list[Endpoint] {
	return list[Endpoint]{
		at:    func(p *Policy) *[]Endpoint { return &p.Allow },
		parse: parseEndpoint,
		id:    endpointText,
		index: &places[Endpoint]{},
		src:   func(e Endpoint) Source { return e.Source },
		covers: func(most, e Endpoint) bool {
			return most.Proto == e.Proto && most.Port <= e.Port && e.PortEnd <= most.PortEnd &&
				hostCovers(most.Host, most.Prefix, e.Host, e.Prefix) && meant(most.Prefix, e.Prefix)
		},
	}
}

func ports() list[Limit] {
	return list[Limit]{
		at: func(p *Policy) *[]Limit { return &p.Publish },
		parse: func(v value) (Limit, *problem) {
			n, p := parsePort(v.text)
			return Limit{N: int64(n), Source: v.src}, p
		},
		id:     func(l Limit) string { return formatCount(l.N) },
		src:    func(l Limit) Source { return l.Source },
		covers: func(most, l Limit) bool { return most.N == l.N },
	}
}

func resolves() list[Resolve] {
	return list[Resolve]{
		at:    func(p *Policy) *[]Resolve { return &p.Resolve },
		parse: parseResolve,
		id:    func(r Resolve) string { return r.Name },
		text:  func(r Resolve) string { return r.Name + "=" + r.Addr },
		src:   func(r Resolve) Source { return r.Source },
		covers: func(most, r Resolve) bool {
			return most.Name == r.Name && most.Addr == r.Addr
		},
		keyed: true,
	}
}

func environment() list[Env] {
	return list[Env]{
		at:    func(p *Policy) *[]Env { return &p.EnvSet },
		parse: parseEnvSet,
		id:    func(e Env) string { return e.Name },
		text:  func(e Env) string { return e.Name + "=" + e.Value },
		src:   func(e Env) Source { return e.Source },
		keyed: true,
	}
}

func equal(most, entry string) bool { return most == entry }

func pathCovers(most, entry string) bool { return below(entry, most) }

// privateCovers compares two entries of allow_private, each a name or a range.
func privateCovers(most, entry string) bool {
	split := func(s string) (name, prefix string) {
		if strings.Contains(s, "/") {
			return "", s
		}
		return s, ""
	}
	name, prefix := split(most)
	inName, inPrefix := split(entry)
	return hostCovers(name, prefix, inName, inPrefix)
}

// parseSyscall checks the shape of a system call's name; whether the kernel
// has it is known only where the filter is built.
func parseSyscall(v value) (Text, *problem) {
	if !shaped(v.text, "abcdefghijklmnopqrstuvwxyz0123456789_", 64) {
		return Text{}, wrong("for example ptrace or io_uring_setup", "%s is not the name of a system call", quote(v.text))
	}
	return Text{Value: v.text, Source: v.src}, nil
}

// parseAction checks the shape of the name of a dispatch action.
func parseAction(v value) (Text, *problem) {
	if !shaped(v.text, "abcdefghijklmnopqrstuvwxyz0123456789-_.", 64) {
		return Text{}, wrong("names of dispatch actions, never values", "%s is not the name of an action", quote(v.text))
	}
	return Text{Value: v.text, Source: v.src}, nil
}

// parseBroker checks the shape of the name of a broker, which is a label of a
// host name (RFC 1035, section 2.3.1).
func parseBroker(v value) (Text, *problem) {
	if !shaped(v.text, "abcdefghijklmnopqrstuvwxyz0123456789-", 63) || strings.Trim(v.text, "-") != v.text {
		return Text{}, wrong("lower-case letters, digits and -", "%s is not the name of a broker", quote(v.text))
	}
	return Text{Value: v.text, Source: v.src}, nil
}

// parseGap checks the shape of a clause: the supervisor names gaps of the host
// that this package does not know.
func parseGap(v value) (Text, *problem) {
	if v.text == gapHostNetwork {
		return Text{}, wrong("remove host-network from unsafe", "the gap %s cannot be accepted", v.text)
	}
	if !shaped(v.text, "abcdefghijklmnopqrstuvwxyz0123456789-_.", 128) {
		return Text{}, wrong("a dotted clause, for example filesystem.max_output_bytes", "%s is not a clause", quote(v.text))
	}
	return Text{Value: v.text, Source: v.src}, nil
}

// parseUnsafe accepts the known words only: a misspelt one must not look as if
// it had said something.
func parseUnsafe(v value) (Text, *problem) {
	words := unsafeWords()
	for _, w := range words {
		if v.text == w {
			return Text{Value: w, Source: v.src}, nil
		}
	}
	hint := didYouMean(v.text, words)
	if hint == "" {
		hint = "known: " + strings.Join(words, ", ")
	}
	return Text{}, wrong(hint, "unknown word %s under unsafe", quote(v.text))
}

// shaped reports whether s starts with a lower-case letter, has only the
// characters of set and at most most bytes.
func shaped(s, set string, most int) bool {
	return s != "" && len(s) <= most && s[0] >= 'a' && s[0] <= 'z' && strings.Trim(s, set) == ""
}
