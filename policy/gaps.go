package policy

import "strings"

// Gap is a clause that this version cannot enforce at all. A run with a gap is
// refused unless allow_gaps has its Clause, and then the clause is not granted
// in any other way: the record says that it was left out.
type Gap struct {
	Clause  string // stable dotted key
	Source  Source
	Missing string // one sentence: what is not there
	Remedy  string // the flag or key to change
	Final   bool   // allow_gaps cannot accept it
}

const gapHostNetwork = "unsafe.host-network"

// Gaps lists the clauses that a file or a flag asked for and this version does
// not build. Defaults never make a gap.
func (p *Policy) Gaps() []Gap {
	var g gaps
	g.runtime(p)
	g.filesystem(p)
	g.bounds(p)
	return g
}

// AcceptsGap reports whether allow_gaps has the clause.
func (p *Policy) AcceptsGap(clause string) bool {
	return clause != gapHostNetwork && hasText(p.AllowGaps, clause)
}

type gaps []Gap

func (g *gaps) add(clause string, src Source, missing, remedy string) {
	*g = append(*g, Gap{Clause: clause, Source: src, Missing: missing, Remedy: remedy})
}

func (g *gaps) runtime(p *Policy) {
	if p.Runtime.Value == "microvm" {
		g.add("runtime", p.Runtime.Source, "the microvm runtime is not built yet: a run shares the kernel of the host", "write runtime: process")
	}
	for _, u := range p.Unsafe {
		if u.Value == unsafeHostNetwork {
			*g = append(*g, Gap{
				Clause: gapHostNetwork, Source: u.Source, Final: true,
				Missing: "a run always has a network namespace of its own: there is no way to share the host's",
				Remedy:  "remove host-network from unsafe",
			})
		}
	}
}

func (g *gaps) filesystem(p *Policy) {
	for _, t := range p.Protect {
		if where := p.reallyWritable(); where != "" && strings.ContainsAny(t.Value, "*?[") {
			g.add("filesystem.protect", t.Source, "paths inside "+quote(where)+", which is written in place, are protected by name only, not by a pattern such as "+quote(t.Value),
				"name them, or use --mode cow, whose commit holds back what a pattern fits")
			break
		}
	}
}

// bounds reports the limit that nothing keeps where a real directory is
// writable. The total size is counted there, see [Policy.CountsOutput].
func (g *gaps) bounds(p *Policy) {
	if where := p.reallyWritable(); where != "" && asked(p.MaxFiles) {
		g.add("filesystem.max_files", p.MaxFiles.Source, "the number of files cannot be limited below "+quote(where)+", a real directory: only the private tmpfs is bounded",
			"write max_files: none (--files none), make the directory read-only, or accept it: --allow-gap filesystem.max_files")
	}
}

// CountsOutput reports whether filesystem.max_output_bytes has to be kept by
// counting what is written to files: a file or a flag set it, and a real
// directory is writable, whose file system knows no such limit. The run is
// ended when it is passed, so it is kept within one counting interval.
func (p *Policy) CountsOutput() bool { return p.reallyWritable() != "" && asked(p.MaxOutputBytes) }

// StageLimited turns a workspace that is written in place and has a size limit
// into one that is staged and committed when the command succeeds: no file system
// keeps such a limit below a directory. It comes after Bound, which judges what
// was asked for. A commit key that a file or a flag has set stays.
func (p *Policy) StageLimited() {
	if p.Workspace.Path == "" || p.Workspace.Mode != "rw" || !asked(p.MaxOutputBytes) {
		return
	}
	p.Workspace.Mode = "cow"
	if p.Commit.Source.IsDefault() {
		p.Commit = Text{Value: "success", Source: p.MaxOutputBytes.Source}
	}
}

// reallyWritable returns a host directory that the command may write, or "".
func (p *Policy) reallyWritable() string {
	if len(p.Writable) > 0 {
		return p.Writable[0].Path
	}
	if p.Workspace.Mode == "rw" {
		return p.Workspace.Path
	}
	return ""
}

// asked reports a limit that a file or a flag set to a number.
func asked(l Limit) bool { return !l.Unlimited && !l.Source.IsDefault() }
