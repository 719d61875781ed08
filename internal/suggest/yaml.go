package suggest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"
)

// YAML returns the policy. head is a remark for its first line.
func (n *Needs) YAML(head string) []byte {
	ro, rw, cow := n.mounts()
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n", trace.Line(head))
	for _, s := range n.Left() {
		fmt.Fprintf(&b, "# left out: %s\n", trace.Line(s))
	}
	if n.untold {
		b.WriteString("# the record tells of no files: what the run had of them is all here\n")
	}
	b.WriteString("sandbox:\n  filesystem:\n")
	switch {
	case n.workspace == "" && len(ro)+len(rw)+len(cow)+len(n.tools)+len(n.caches) == 0:
		b.WriteString("    read_only_mounts: []\n")
	case n.workspace != "":
		fmt.Fprintf(&b, "    workspace:\n      path: %s\n      mode: %s%s\n", quote(n.workspace), n.mode, n.modeRemark())
	}
	list(&b, "    ", "read_only_mounts", ro)
	list(&b, "    ", "writable_mounts", rw)
	list(&b, "    ", "cow_mounts", cow)
	list(&b, "    ", "toolchains", slices.Sorted(maps.Keys(n.tools)))
	list(&b, "    ", "caches", slices.Sorted(maps.Keys(n.caches)))
	n.limitLines(&b, "filesystem")
	n.network(&b)
	n.process(&b)
	if len(n.env) > 0 {
		b.WriteString("  env:\n")
		list(&b, "    ", "allowlist", slices.Sorted(maps.Keys(n.env)))
	}
	if _, ok := n.limits["output.max_stdout_bytes"]; ok {
		b.WriteString("  output:\n")
		n.limitLines(&b, "output")
	}
	list(&b, "  ", "unsafe", slices.Sorted(maps.Keys(n.words)))
	return b.Bytes()
}

func (n *Needs) modeRemark() string {
	if n.mode == "cow" {
		return " # changes are staged; rw writes in place"
	}
	return ""
}

// mounts returns the entries of the three lists: the grants that were used, and
// of what was missed as much as may be suggested.
func (n *Needs) mounts() (ro, rw, cow []string) {
	for g, mode := range n.grants {
		entry := g.from
		if g.at != g.from {
			entry += ":" + g.at
		}
		switch mode {
		case "ro":
			ro = append(ro, entry)
		case "cow":
			cow = append(cow, entry)
		default:
			rw = append(rw, entry)
		}
	}
	for p, write := range collapse(n.sayable()) {
		if write {
			rw = append(rw, p)
		} else {
			ro = append(ro, p)
		}
	}
	slices.Sort(ro)
	slices.Sort(rw)
	slices.Sort(cow)
	return ro, rw, cow
}

// sayable returns the paths that were missed, less those that may not be
// suggested. They are taken out before anything is drawn together: a directory
// that is left out must not stand for what lies in it.
func (n *Needs) sayable() map[string]bool {
	out := map[string]bool{}
	for p, write := range n.paths {
		why := policy.BroadMount(p, write)
		switch {
		case strings.ContainsFunc(p, unprintable) || strings.Contains(p, ":"):
			n.leave("%s: a policy cannot name it", trace.Quote(p))
		case why != "" && !n.Unsafe:
			n.leave("%s: it %s, which needs unsafe: [broad-mount]", trace.Quote(p), why)
		default:
			if why != "" {
				n.words["broad-mount"] = true
			}
			out[p] = write
		}
	}
	return out
}

func unprintable(r rune) bool { return trace.Line(string(r)) != string(r) || r == 0xfffd }

func (n *Needs) network(b *bytes.Buffer) {
	if len(n.hosts)+len(n.sockets)+len(n.brokers)+len(n.publish) == 0 {
		return
	}
	b.WriteString("  network:\n")
	if len(n.hosts) > 0 {
		b.WriteString("    egress: allowlist\n")
	}
	list(b, "    ", "allowlist", slices.Sorted(maps.Keys(n.hosts)))
	list(b, "    ", "allow_private", slices.Sorted(maps.Keys(n.private)))
	if len(n.resolve) > 0 {
		b.WriteString("    resolve:\n")
	}
	for _, name := range slices.Sorted(maps.Keys(n.resolve)) {
		fmt.Fprintf(b, "      %s: %s\n", quote(name), quote(n.resolve[name]))
	}
	list(b, "    ", "unix", slices.Sorted(maps.Keys(n.sockets)))
	if len(n.publish) > 0 {
		fmt.Fprintf(b, "    publish: [%s]\n", strings.Join(slices.Sorted(maps.Keys(n.publish)), ", "))
	}
	list(b, "    ", "broker", slices.Sorted(maps.Keys(n.brokers)))
}

func (n *Needs) process(b *bytes.Buffer) {
	calls := slices.Sorted(maps.Keys(n.calls))
	var own bytes.Buffer
	n.limitLines(&own, "process")
	if n.Unsafe {
		list(&own, "    ", "seccomp_allow", calls)
	}
	if own.Len() > 0 {
		b.WriteString("  process:\n")
		b.Write(own.Bytes())
	}
	if !n.Unsafe && len(calls) > 0 {
		fmt.Fprintf(b, "  # refused, and rarely needed: process.seccomp_allow: [%s]\n", trace.Line(strings.Join(calls, ", ")))
	}
}

// limitLines writes the limits of one section that a run met, doubled.
func (n *Needs) limitLines(b *bytes.Buffer, section string) {
	for _, key := range slices.Sorted(maps.Keys(n.limits)) {
		name, ok := strings.CutPrefix(key, section+".")
		if !ok {
			continue
		}
		v := n.limits[key]
		text := fmt.Sprint(v)
		switch {
		case strings.HasSuffix(name, "_seconds"): // of ns
			text = fmt.Sprintf("%ds", max(v/1e9, 1))
		case name == "max_memory_mb":
			text = fmt.Sprint(max(v>>20, 1))
		}
		fmt.Fprintf(b, "    %s: %s # twice what a run met\n", name, text)
	}
}

func list(b *bytes.Buffer, indent, key string, entries []string) {
	if len(entries) == 0 {
		return
	}
	fmt.Fprintf(b, "%s%s:\n", indent, key)
	for _, e := range entries {
		fmt.Fprintf(b, "%s  - %s\n", indent, quote(e))
	}
}

// quote renders a YAML string: JSON's are some of YAML's.
func quote(s string) string { return trace.QuoteJSON(s) }
