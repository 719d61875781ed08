package policy

import (
	"net/netip"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/net/idna"

	"github.com/agentguard/agentguard/internal/special"
)

const (
	maxName  = 253 // RFC 1035 2.3.4, without the root dot
	maxLabel = 63
	// Shorter prefixes are most of the internet: no allowlist any more.
	minBits4, minBits6 = 8, 16
)

const endpointForms = "HOST:PORT, *.NAME:PORT, ADDR:PORT, [V6]:PORT or CIDR:PORT, PORT may be LOW-HIGH, udp:// may stand before"

// parseEndpoint reads one entry of the egress allowlist.
func parseEndpoint(v value) (Endpoint, *problem) {
	e := Endpoint{Text: v.text, Proto: "tcp", Source: v.src}
	rest := v.text
	if scheme, after, found := strings.Cut(v.text, "://"); found {
		if p := checkScheme(scheme, after); p != nil {
			return e, p
		}
		e.Proto, rest = strings.ToLower(scheme), after
	}
	colon := strings.LastIndexByte(rest, ':')
	if colon < 0 || strings.HasSuffix(rest, "]") {
		return e, wrong("write "+suggestPort(rest), "%s has no port", quote(v.text))
	}
	host := rest[:colon]
	if strings.Count(host, ":") > 0 && !strings.ContainsAny(host, "[/") {
		return e, wrong("write [V6]:PORT", "%s: an IPv6 address is written in brackets", quote(v.text))
	}
	var p *problem
	if e.Port, e.PortEnd, p = parsePorts(rest[colon+1:]); p != nil {
		return e, p
	}
	e.Host, e.Prefix, p = parseHost(host)
	return e, p
}

// checkScheme accepts tcp and udp, and says what to write for a URL.
func checkScheme(scheme, after string) *problem {
	host, _, _ := strings.Cut(after, "/")
	switch strings.ToLower(scheme) {
	case "tcp", "udp":
		return nil
	case "https", "http":
		if !strings.Contains(host, ":") {
			host += map[string]string{"https": ":443", "http": ":80"}[strings.ToLower(scheme)]
		}
		return wrong("write "+quote(host), "%s is a URL", quote(scheme+"://"+after))
	}
	return wrong("only udp:// and tcp:// may stand before a host", "unknown protocol %s", quote(scheme))
}

// suggestPort shows a port-less entry with the usual port.
func suggestPort(host string) string {
	if strings.Count(host, ":") > 1 && !strings.HasPrefix(host, "[") {
		host = "[" + host + "]"
	}
	return quote(host + ":443")
}

// parsePorts reads PORT or LOW-HIGH.
func parsePorts(text string) (low, high uint16, p *problem) {
	first, last, ranged := strings.Cut(text, "-")
	if low, p = parsePort(first); p != nil || !ranged {
		return low, low, p
	}
	if high, p = parsePort(last); p != nil {
		return low, high, p
	}
	if high < low {
		return low, high, wrong("write "+last+"-"+first, "%s: the port range runs backwards", quote(text))
	}
	return low, high, nil
}

// parsePort reads 1 to 65535.
func parsePort(text string) (uint16, *problem) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || octal(text) {
		return 0, wrong("a number from 1 to 65535, or LOW-HIGH", "%s is not a port", quote(text))
	}
	return uint16(n), nil
}

// parseHost reads the part before the port: a name (then prefix is "") or an
// address or range (then name is "").
func parseHost(host string) (name, prefix string, p *problem) {
	bare := strings.ReplaceAll(strings.ReplaceAll(host, "[", ""), "]", "")
	bracketed := bare != host
	if bracketed && (strings.Count(host, "[") != 1 || strings.Count(host, "]") != 1 || host[0] != '[' || !strings.Contains(bare, ":")) {
		return "", "", wrong("only an IPv6 address is written in brackets", "%s is not a host", quote(host))
	}
	if strings.Contains(bare, "/") {
		prefix, p = parsePrefix(bare)
		return "", prefix, p
	}
	if addr, err := netip.ParseAddr(bare); err == nil {
		if p := checkAddr(addr); p != nil {
			return "", "", p
		}
		return "", netip.PrefixFrom(addr, addr.BitLen()).String(), nil
	}
	if bracketed {
		return "", "", wrong("", "%s is not an IPv6 address", quote(bare))
	}
	name, p = parseName(bare)
	return name, "", p
}

// checkAddr refuses addresses that mean something else than they show.
func checkAddr(addr netip.Addr) *problem {
	switch {
	case addr.Zone() != "":
		return wrong("", "%s: an address with a zone cannot be granted", quote(addr.String()))
	case addr.Is4In6():
		return wrong("write "+addr.Unmap().String(), "%s is an IPv4 address in IPv6 clothes", quote(addr.String()))
	case addr.IsUnspecified():
		return wrong("", "%s is not the address of a host", quote(addr.String()))
	}
	return nil
}

// parsePrefix reads a CIDR range and returns its canonical form.
func parsePrefix(text string) (string, *problem) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return "", wrong("write ADDRESS/BITS, for example 10.1.0.0/16", "%s is not an address range", quote(text))
	}
	if prefix.Addr().Is4In6() {
		return "", wrong("write the IPv4 range", "%s is an IPv4 range in IPv6 clothes", quote(text))
	}
	if prefix.IsSingleIP() {
		if p := checkAddr(prefix.Addr()); p != nil {
			return "", p
		}
	}
	if prefix != prefix.Masked() {
		return "", wrong("write "+prefix.Masked().String(), "%s has host bits set", quote(text))
	}
	if least := map[bool]int{true: minBits4, false: minBits6}[prefix.Addr().Is4()]; prefix.Bits() < least {
		return "", wrong("/"+strconv.Itoa(least)+" is the widest range", "%s is too wide for an allowlist", quote(text))
	}
	return prefix.String(), nil
}

// parseName reads a DNS name in lower case; "*." may stand before it. An
// international name is turned into its ASCII form (RFC 5891).
func parseName(text string) (string, *problem) {
	lower, p := toASCII(text)
	if p != nil {
		return "", p
	}
	name, wild := strings.CutPrefix(lower, "*.")
	if strings.HasSuffix(name, ".") {
		return "", wrong("leave out the last dot", "%s ends with a dot", quote(text))
	}
	if strings.Contains(name, "*") {
		return "", wrong(`a wildcard is the whole first label: "*.example.com"`, "%s is not a host", quote(text))
	}
	labels := strings.Split(name, ".")
	if p := checkLabels(text, name, labels); p != nil {
		return "", p
	}
	if wild && (publicSuffix(name) || publicSuffix("any."+name)) {
		return "", wrong(`name the domain: "*.example.`+name+`"`, "%s would allow names that anybody can register", quote(text))
	}
	if below := suffixBelow(name); wild && below != "" {
		return "", wrong("name the domains below it that are meant", "%s would allow names below %s, where anybody can register", quote(text), below)
	}
	return lower, nil
}

// checkLabels accepts letters, digits, hyphens and underscores; a last label
// of digits only is a mistyped address (RFC 3696 2), and a hexadecimal number one
// that inet_aton(3), of a proxy for instance, reads.
func checkLabels(text, name string, labels []string) *problem {
	if len(name) > maxName {
		return wrong("", "%s: a name has at most %d bytes", quote(text), maxName)
	}
	for _, l := range labels {
		bad := strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != ""
		if l == "" || len(l) > maxLabel || bad || l[0] == '-' || l[len(l)-1] == '-' {
			return wrong(endpointForms, "%s is not a host", quote(text))
		}
	}
	last := labels[len(labels)-1]
	hex, isHex := strings.CutPrefix(last, "0x")
	if strings.Trim(last, "0123456789") == "" || isHex && strings.Trim(hex, "0123456789abcdef") == "" {
		return wrong("", "%s is neither an address nor a name", quote(text))
	}
	return nil
}

// toASCII returns the name in lower case, without characters beyond ASCII.
func toASCII(text string) (string, *problem) {
	if strings.IndexFunc(text, func(r rune) bool { return r >= 0x80 }) < 0 {
		return strings.ToLower(text), nil
	}
	name, wild := strings.CutPrefix(text, "*.")
	odd := func(r rune) bool { return r >= 0x80 && !unicode.In(r, unicode.Letter, unicode.Mark, unicode.Nd) }
	ascii, err := idna.Lookup.ToASCII(name)
	back, berr := idna.Lookup.ToUnicode(ascii)
	// What does not come back as it was written looks like another name.
	if err != nil || berr != nil || back != strings.ToLower(name) || strings.IndexFunc(name, odd) >= 0 {
		return "", wrong("write its ASCII form, xn--...", "%s is no international name", quote(text))
	}
	if wild {
		ascii = "*." + ascii
	}
	return ascii, nil
}

// parsePrivate reads an entry of allow_private: a host without a port.
func parsePrivate(v value) (Text, *problem) {
	name, prefix, p := parseHost(v.text)
	if p != nil && strings.Contains(v.text, ":") && !strings.Contains(v.text, "::") {
		p = wrong("write the host alone", "%s: allow_private takes no port", quote(v.text))
	}
	return Text{Value: name + prefix, Source: v.src}, p
}

// parseResolve reads the name and the address it is pinned to.
func parseResolve(v value) (Resolve, *problem) {
	name, p := parseName(v.key)
	if p == nil && strings.HasPrefix(name, "*") {
		p = wrong("", "%s: a wildcard cannot be resolved", quote(v.key))
	}
	if p != nil {
		return Resolve{}, p
	}
	addr, err := netip.ParseAddr(v.text)
	if err != nil {
		return Resolve{}, wrong("write an IPv4 or IPv6 address", "%s is not an address", quote(v.text))
	}
	return Resolve{Name: name, Addr: addr.String(), Source: v.src}, checkAddr(addr)
}

// hostCovers reports whether the host part of a ceiling's entry includes that
// of an entry: equal names, names under a wildcard, ranges inside a range.
func hostCovers(name, prefix, inName, inPrefix string) bool {
	if prefix != "" {
		outer, err1 := netip.ParsePrefix(prefix)
		inner, err2 := netip.ParsePrefix(inPrefix)
		return err1 == nil && err2 == nil && outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
	}
	if inName == "" {
		return false
	}
	suffix, wild := strings.CutPrefix(name, "*")
	return name == inName || wild && strings.HasSuffix(inName, suffix)
}

// meant reports whether a range was meant for the narrower one inside it: special
// addresses of a wider range are not granted with that, so neither may they be asked for by name.
func meant(prefix, inPrefix string) bool {
	outer, err1 := netip.ParsePrefix(prefix)
	inner, err2 := netip.ParsePrefix(inPrefix)
	return err1 != nil || err2 != nil || !special.Contains(inner.Addr()) || special.Names(outer, inner.Addr())
}

// endpointText is the canonical form of an entry.
func endpointText(e Endpoint) string {
	host := e.Host
	if e.Prefix != "" {
		host = strings.TrimSuffix(e.Prefix, "/128")
		if !strings.Contains(host, ":") {
			host = strings.TrimSuffix(host, "/32")
		}
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
	}
	s := host + ":" + strconv.Itoa(int(e.Port))
	if e.PortEnd != e.Port {
		s += "-" + strconv.Itoa(int(e.PortEnd))
	}
	if e.Proto == "udp" {
		s = "udp://" + s
	}
	return s
}
