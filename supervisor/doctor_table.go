package supervisor

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// plainCaller says who calls, and whether a run with the default policy would go ahead.
func (x *examination) plainCaller() {
	who := fmt.Sprintf("uid %d", x.UID)
	switch {
	case x.ways.helper == nil:
		x.say("caller", "privileges", cellOK, who+": the helper makes the envelope and the record", "")
	case x.ways.ns.OK:
		x.say("caller", "privileges", cellThin, who+" without the helper: runs are made in a user namespace, and their records are degraded", helperRemedy)
	case x.Inside.Envelope.Name == ownName:
		x.say("caller", "privileges", cellMissing, who+" inside of a run, which can make no envelope but by Landlock alone", "agentguard outside of this run, or exec --allow-gap landlock")
	default:
		x.say("caller", "privileges", cellMissing, oneLine(x.ways.ns.Refusal().What+", and there is no helper"), oneLine(x.ways.ns.Remedy+"; or exec --allow-gap landlock"))
	}
}

// modeWidth is that of a column of the table of the three ways.
const modeWidth = 34

// modeRows writes the three ways side by side.
func (r *report) modeRows(b *strings.Builder) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	row := func(name string, cell func(*modeReport) string) {
		cells, height := make([][]string, len(r.Modes)), 0
		for i := range r.Modes {
			cells[i] = wrapAt(cell(&r.Modes[i]), modeWidth)
			height = max(height, len(cells[i]))
		}
		for n := range height {
			fmt.Fprint(t, name)
			for _, c := range cells {
				fmt.Fprint(t, "\t")
				if n < len(c) {
					fmt.Fprint(t, c[n])
				}
			}
			fmt.Fprintln(t)
			name = ""
		}
	}
	row("", func(m *modeReport) string { return modeNames[m.Mode] })
	row("available", (*modeReport).availability)
	row("", func(m *modeReport) string { return m.Why })
	for i, l := range r.Modes[0].Layers {
		row(l.Resource, func(m *modeReport) string { return m.Layers[i].Layers })
	}
	row("record", func(m *modeReport) string { return m.Record })
	row("lacks", (*modeReport).lacking)
	row("to change", func(m *modeReport) string { return m.Remedy })
	_ = t.Flush() // into memory
}

var modeNames = map[string]string{ModeRoot: "ROOT OR HELPER", ModeUserNS: "USER NAMESPACE", ModeLandlock: "LANDLOCK ALONE"}

func (m *modeReport) availability() string {
	switch {
	case m.Chosen:
		return "yes: this is what exec takes here"
	case m.Available:
		return "yes"
	}
	return "no"
}

// lacking are the names of what a mode lacks; the JSON has the reasons, and the rows below those of root.
func (m *modeReport) lacking() string {
	if !m.Available && m.Mode == ModeRoot {
		return "only root can tell"
	}
	var names []string
	for _, l := range m.Lacks {
		names = append(names, l.Guarantee)
	}
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}
