package trace

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
)

// Diff reads two records and prints what one of them holds and the other does
// not: programs, files, peers and denials, and how the runs ended. Lines of the
// first begin with "-", of the second with "+". The judgements come first. It
// reports whether nothing differs and both are complete.
//
// With asJSON it prints one JSON object for each line that differs instead.
func Diff(w io.Writer, a, b io.Reader, asJSON bool) (bool, error) {
	var doings [2]*doings
	out := bufio.NewWriter(w)
	same := true
	for i, r := range []io.Reader{a, b} {
		in := NewReader(r)
		d := newDoings()
		if err := in.Each(d.add); err != nil {
			return false, err
		}
		doings[i] = d
		j, why := in.Report().Judge()
		same = same && j == Complete && !d.full()
		if asJSON {
			continue
		}
		fmt.Fprintf(out, "record    %s, %d records, %s\n", j, in.Report().Records, or(d.run))
		for _, s := range why {
			fmt.Fprintf(out, "          %s\n", s)
		}
		if d.full() {
			fmt.Fprintln(out, "          too much to compare: of some kinds only the first were kept")
		}
	}
	for i, title := range doingKinds {
		x, y := doings[0].kept[i], doings[1].kept[i]
		list := differing(x.at, y.at)
		same = same && len(list) == 0
		if asJSON {
			writeSides(out, title, list)
		} else {
			writeList(out, title, list, false)
		}
	}
	return same, out.Flush()
}

// doingKinds are the sections of a comparison.
var doingKinds = [...]string{"programs", "files", "network", "denied", "result"}

// doings is the set of different things that a run did.
type doings struct {
	run  string
	kept [len(doingKinds)]*set
}

// set is a set of lines of bounded size.
type set struct {
	at    map[string]struct{}
	bytes int
	full  bool
}

func (s *set) add(line string) {
	if _, there := s.at[line]; there {
		return
	}
	if s.bytes += len(line); s.bytes > maxViewBytes {
		s.full = true
		return
	}
	s.at[line] = struct{}{}
}

func newDoings() *doings {
	d := &doings{}
	for i := range d.kept {
		d.kept[i] = &set{at: map[string]struct{}{}}
	}
	return d
}

func (d *doings) full() bool {
	return slices.ContainsFunc(d.kept[:], func(s *set) bool { return s.full })
}

func (d *doings) add(e *Event) error {
	programs, paths, peers, refused, results := d.kept[0], d.kept[1], d.kept[2], d.kept[3], d.kept[4]
	switch {
	case e.Kind == KindStart:
		d.run = e.Run
	case e.Kind == KindSummary:
		results.add(result(e))
	case e.Phase == PhaseEnvelope:
	case e.Denied():
		refused.add(sentence(e))
	case e.Errno != 0: // nothing came of it
	case runsCode(e):
		programs.add(codeLine(e))
	case onNetwork(e):
		peers.add(netLine(e))
	case fileWord(e) != "":
		paths.add(fileWord(e) + " " + cmp.Or(Object(e), "?"))
		if len(e.To) > 0 {
			paths.add(fileWord(e) + " to " + Quote(e.To[:min(len(e.To), maxShown)]))
		}
	}
	return nil
}

// differing returns the lines of one section that differ, in their order.
func differing(a, b map[string]struct{}) []string {
	var list []string
	for s := range a {
		if _, both := b[s]; !both {
			list = append(list, "- "+s)
		}
	}
	for s := range b {
		if _, both := a[s]; !both {
			list = append(list, "+ "+s)
		}
	}
	slices.SortFunc(list, func(x, y string) int { return cmp.Compare(x[2:], y[2:]) })
	return list
}

func writeSides(w io.Writer, section string, list []string) {
	for _, s := range list {
		fmt.Fprintf(w, "{\"side\":%q,\"section\":%q,\"text\":%s}\n", s[:1], section, QuoteJSON(s[2:]))
	}
}
