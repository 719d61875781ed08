package trace

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
)

// Bounds of an explanation. What is beyond is counted.
const (
	maxExplained = 500 // different denials
	maxMissing   = 500 // different paths that were not there
	maxAncestors = 8
)

// Explain reads a record and says of each different denial in plain words what
// was tried, by which process and who had started it, what refused it, by which
// clause, and what would allow it; of a path that was missing, what the host has
// there. Then it lists the paths that the command looked for in vain without
// being refused and that the host has. ask returns what is at a path of the host
// ("a file"), or "" if there is nothing or it cannot be told; nil asks nothing.
func Explain(w io.Writer, r io.Reader, ask func(path string) string) (Judgement, error) {
	x, report, err := explain(r)
	if err != nil {
		return "", err
	}
	out := bufio.NewWriter(w)
	x.view.writeHead(out, report)
	x.writeDenials(out, ask)
	if ask != nil {
		x.writeMissing(out, ask)
	}
	judgement, _ := report.Judge()
	return judgement, out.Flush()
}

// explain collects what an explanation is made of.
func explain(r io.Reader) (*explanation, *Report, error) {
	x := &explanation{view: &view{brief: true}, tree: newProcesses(), at: map[string]*refusal{}, missing: map[string]*refusal{}}
	in := NewReader(r)
	err := in.Each(x.add)
	return x, in.Report(), err
}

type explanation struct {
	view    *view
	tree    *processes
	begin   uint64
	denials []*refusal
	at      map[string]*refusal // by sentence
	missing map[string]*refusal // by path
	others  uint64              // denials that were not kept
	asked   uint64              // name servers inside the run that were asked
	names   bool                // the run has a resolver, which records what it is asked
}

// refusal is one denial, or a look-up in vain, and how often there was one like
// it.
type refusal struct {
	e     Event // the first
	who   *process
	image string // what the process ran at that time
	count uint64
}

func (x *explanation) add(e *Event) error {
	if x.begin == 0 {
		x.begin = e.Mono
	}
	_ = x.view.add(e) // keeps start and summary, and never fails
	x.tree.add(e)
	switch {
	case e.Denied():
		x.deny(e)
	case e.Kind == KindDNS:
		x.names = true
	case onNetwork(e) && e.Port == 53 && e.Addr.Unmap().IsLoopback():
		x.asked += e.Times()
	case e.Errno == enoent && e.Phase != PhaseEnvelope && absolute(e.Path) && !secret(e):
		if m := x.missing[string(e.Path)]; m != nil {
			m.count += e.Times()
		} else if len(x.missing) < maxMissing {
			x.missing[string(e.Path)] = x.keep(e)
		}
	}
	return nil
}

const enoent = 2 // ENOENT is this on every architecture

func (x *explanation) deny(e *Event) {
	key := sentence(e)
	if d := x.at[key]; d != nil {
		d.count += e.Times()
		return
	}
	if len(x.denials) >= maxExplained {
		x.others += e.Times()
		return
	}
	d := x.keep(e)
	x.at[key] = d
	x.denials = append(x.denials, d)
}

// keep copies what an explanation needs of an event.
func (x *explanation) keep(e *Event) *refusal {
	d := &refusal{e: *e, who: x.tree.get(&e.Proc, e.Mono), count: e.Times()}
	d.e.Path, d.e.To = slices.Clone(e.Path), slices.Clone(e.To)
	d.e.Name, d.e.PathGiven, d.e.ToGiven, d.e.Comm, d.e.Argv, d.e.Env = slices.Clone(e.Name), nil, nil, nil, nil, nil
	d.e.Script, d.e.Interp, d.e.Counts, d.e.Findings = nil, nil, nil, nil
	if d.who != nil && len(d.who.execs) > 0 {
		d.image = d.who.latest()
	}
	return d
}

func (x *explanation) writeDenials(w io.Writer, ask func(string) string) {
	total := x.others
	for _, d := range x.denials {
		total += d.count
	}
	writeHeading(w, "denied", total)
	for i, d := range x.denials {
		fmt.Fprintf(w, "\n%d. %s\n", i+1, d.headline())
		row := func(name, text string) { fmt.Fprintf(w, "   %-8s %s\n", name, text) }
		row("when", fmt.Sprintf("%s, record %d", since(d.e.Mono, x.begin), d.e.Seq))
		row("by", d.layer())
		row("clause", d.clause())
		x.writeWho(row, d)
		remedy := d.remedy()
		if d.askable(ask) {
			there := Line(ask(string(d.e.Path)))
			if there == "" { // a grant of what is not there is refused
				there, remedy = "nothing that you can see", "none is needed where it was only looked for; else make it, then "+remedy
			}
			row("host", there+" at this path")
		}
		row("remedy", remedy)
	}
	if x.asked > 0 && !x.names {
		fmt.Fprintf(w, "\na name server was asked, %d times, and the run has none: names are known to runs that may reach\n"+
			"somebody (network.egress); allow what it needs by name: --allow NAME:PORT\n", x.asked)
	}
	if x.others > 0 {
		fmt.Fprintf(w, "\n(%d further denials: trace denied)\n", x.others)
	}
}

// headline says what was refused, and how often.
func (d *refusal) headline() string {
	s := act(&d.e)
	if o := Object(&d.e); o != "" {
		s += " " + o
	}
	if len(d.e.To) > 0 {
		s += " to " + Quote(d.e.To[:min(len(d.e.To), maxShown)])
	}
	s += " was refused"
	if d.e.Errno != 0 {
		s += " with " + ErrnoName(d.e.Errno)
	}
	if d.count > 1 {
		s += fmt.Sprintf(", %d times", d.count)
	}
	return s
}

// layer says in plain words what refused, and how sure that is.
func (d *refusal) layer() string {
	var s string
	switch d.e.Layer {
	case LayerLandlock:
		s = "landlock: no rule of this run grants this access to the path"
	case LayerSeccomp:
		s = "seccomp: the filter refuses this system call, whoever makes it"
	case LayerBPF:
		s = "bpf: the network program of the run's cgroup allows no such destination"
	case LayerMount:
		s = "mount: the run's view shows this read-only"
		if d.e.Errno == enoent {
			s = "mount: nothing of this path is in the run's view"
		}
	case LayerDAC:
		s = "dac: ordinary permissions, of the file or of the command's user; no clause of the policy"
		if d.e.Kind == KindDeny { // of no file
			s = "dac: ordinary permissions, or the capability that the call takes, of which no run has any; no clause of the policy"
		}
	case LayerLimit:
		s = "limit: a limit of the run was met"
	case LayerNone:
		return "not agentguard"
	case "":
		return "unknown"
	default:
		s = word1(string(d.e.Layer))
	}
	if d.e.Certainty == Inferred {
		s += " (inferred from the error and the plan)"
	}
	return s
}

func (d *refusal) clause() string {
	if d.e.Rule == "" {
		return "none"
	}
	switch src := d.e.RuleSource; src {
	case "":
		return word1(d.e.Rule)
	case "default":
		return word1(d.e.Rule) + ", as by default: no file and no flag grants it"
	default:
		return word1(d.e.Rule) + ", set by " + Line(src)
	}
}

// askable reports whether the host may be asked about the path of a denial: one
// that was missing, and that does not usually hold credentials.
func (d *refusal) askable(ask func(string) string) bool {
	return ask != nil && d.e.Errno == enoent && absolute(d.e.Path) && !secret(&d.e)
}

// ancestors are the processes that started the one that was refused, the nearest
// first, but for agentguard; at most maxAncestors and one more.
func (d *refusal) ancestors() []*process {
	var out []*process
	if d.who == nil {
		return nil
	}
	for p := d.who.parent; p != nil && !p.launcher && len(out) <= maxAncestors; p = p.parent {
		out = append(out, p)
	}
	return out
}

// latest is what a process executed last.
func (p *process) latest() string {
	if len(p.execs) == 0 {
		return "(no exec)"
	}
	return p.execs[len(p.execs)-1]
}

// writeWho names the process, and who had started it.
func (x *explanation) writeWho(row func(name, text string), d *refusal) {
	if d.e.Proc.Pid == 0 {
		return
	}
	row("process", fmt.Sprintf("%s [%d]", cmp.Or(d.image, "(no exec)"), d.e.Proc.Pid))
	name := "started"
	for i, p := range d.ancestors() {
		if i == maxAncestors {
			row("", "by ...")
			return
		}
		row(name, fmt.Sprintf("by %s [%s]", p.latest(), p.pid()))
		name = ""
	}
}

// remedy names what would allow the act, if anything a flag says does.
func (d *refusal) remedy() string {
	switch {
	case secret(&d.e):
		return "none is named for paths that usually hold credentials"
	case d.e.Remedy != "":
		return Line(d.e.Remedy)
	case d.e.Layer == LayerDAC && d.e.Kind == KindDeny:
		return "none: no policy gives a run capabilities"
	case d.e.Layer == LayerDAC || d.e.Layer == LayerNone:
		return "none here: it is not agentguard that refuses"
	case d.e.Layer == LayerSeccomp:
		return "none: no policy allows this call"
	}
	return "no flag grants just this"
}

// writeMissing lists what the command did not find although the host has it.
func (x *explanation) writeMissing(w io.Writer, ask func(string) string) {
	var paths []string
	for p := range x.missing {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	var list []string
	for _, p := range paths {
		what := ask(p)
		if what == "" {
			continue
		}
		m := x.missing[p]
		s := fmt.Sprintf("%s: %s on the host, looked for %d times", Quote(p), Line(what), m.count)
		if m.image != "" {
			s += " by " + m.image
		}
		list = append(list, s+"; show it with --ro "+Quote(p))
	}
	writeList(w, "missing", list, false)
}
