package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

// What a cell of the diagnosis can be. docs/doctor.md says for each row which
// finding gives which state.
const (
	cellOK      = "ok"
	cellThin    = "thin"    // a run goes ahead with one layer less, or with something said about it
	cellMissing = "missing" // a run with the default policy is refused, or goes unrecorded
	cellUnknown = "unknown" // could not be told, mostly for want of root
)

// cell is one layer of one resource on this host.
type cell struct {
	ID       string `json:"id"` // stable: "files.landlock"
	Resource string `json:"resource"`
	Layer    string `json:"layer"`
	State    string `json:"state"`
	Finding  string `json:"finding"`          // one sentence
	Remedy   string `json:"remedy,omitempty"` // what to change; never done by doctor itself
}

// report is the document of doctor --json. Fields are added without a new
// schema number; none changes its meaning or goes.
type report struct {
	Schema  int          `json:"schema"`
	Version string       `json:"version"`
	Kernel  string       `json:"kernel"`
	Machine string       `json:"machine"`
	UID     int          `json:"uid"` // effective, of doctor itself
	Inside  inside       `json:"inside"`
	Modes   []modeReport `json:"modes"`
	Layers  []cell       `json:"layers"`
	Healthy bool         `json:"healthy"` // no cell is missing
	Advice  Advice       `json:"advice"`  // for a command that needs neither network nor credential
}

// Diagnosis is what doctor found: what this host enforces and records.
type Diagnosis struct {
	report report
}

// examination is a diagnosis in progress. Its probes are real: they make what
// a run makes, in places that vanish with a thread or are removed again.
type examination struct {
	report
	host Host
	root bool
	abi  int // Landlock

	ways   wayFindings
	birth  birthFindings
	record recordFindings
}

// Diagnose probes the host by trying and changes nothing on it. It works for
// every user; what only root can try is unknown to others. It takes some
// hundred milliseconds, most of them in loading programs. helper is nil when the helper
// serves this user, and says why it does not; of root it is not asked.
func Diagnose(helper func() error) *Diagnosis {
	x := &examination{root: os.Geteuid() == 0}
	x.host.kernel()
	x.report = report{Schema: 1, Version: Version, Kernel: x.host.Info.Kernel, Machine: x.host.Info.Machine, UID: os.Geteuid()}
	x.host.probeLandlock()
	x.abi = x.host.Info.Landlock
	x.Inside = lookAround(x.abi)
	x.tryRun()
	x.tryModes(helper)
	for _, examine := range []func(){
		x.caller,
		x.files, x.network, x.unixSockets, x.processes, x.syscalls, x.limits,
		x.recording, x.own,
	} {
		examine()
	}
	x.modes()
	x.Advice = *Advise(Question{Environ: os.Environ(), Home: home()})
	x.Healthy = true
	for _, c := range x.Layers {
		x.Healthy = x.Healthy && c.State != cellMissing
	}
	return &Diagnosis{x.report}
}

// home is the caller's home directory, or "".
func home() string {
	c, err := CurrentCaller(os.Getenv)
	if err != nil {
		return ""
	}
	return c.Home(os.Getenv)
}

// say adds a cell whose id is "resource.layer" with dashes for blanks.
func (x *examination) say(resource, layer, state, finding, remedy string) {
	id := strings.ReplaceAll(resource, " ", "-") + "." + strings.ReplaceAll(layer, " ", "-")
	if state == cellOK {
		remedy = ""
	}
	x.Layers = append(x.Layers, cell{id, resource, layer, state, finding, remedy})
}

// errRoot stands for the result of what was not tried for want of root.
var errRoot = errors.New("only root can try this")

// asRoot runs a probe that no other user can pass.
func (x *examination) asRoot(probe func() error) error {
	if !x.root {
		return errRoot
	}
	return probe()
}

// try adds a cell for something that worked or did not. bad is the state when
// err says that it did not, unless it was not tried.
func (x *examination) try(resource, layer, good string, err error, bad, remedy string) {
	switch {
	case err == nil:
		x.say(resource, layer, cellOK, good, "")
	case errors.Is(err, errRoot):
		x.say(resource, layer, cellUnknown, errRoot.Error(), rootRemedy)
	default:
		x.say(resource, layer, bad, oneLine(err.Error()), remedy)
	}
}

const rootRemedy = "sudo agentguard doctor"

// oneLine makes one bounded line of an error; what programs of others put into
// it (paths, verifier logs) cannot break the table.
func oneLine(s string) string {
	const limit = 400
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\u2028' || r == '\u2029' }), "; ")
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return s
}

// Healthy reports whether no layer is missing: a run with the default policy
// would go ahead, and be recorded. Thin layers are healthy.
func (d *Diagnosis) Healthy() bool { return d.report.Healthy }

// WriteJSON writes the document that docs/doctor.md describes.
func (d *Diagnosis) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(&d.report)
}

// WriteText writes the findings for a reader: a table, and under each row that
// is not ok what to change.
func (d *Diagnosis) WriteText(w io.Writer) error {
	r := &d.report
	var b strings.Builder
	fmt.Fprintf(&b, "agentguard %s on Linux %s (%s), examined by uid %d\n", r.Version, oneLine(r.Kernel), r.Machine, r.UID)
	for _, line := range r.Inside.lines() {
		fmt.Fprintf(&b, "%s\n", line)
	}
	for _, why := range r.Advice.Why {
		fmt.Fprintf(&b, "advice: %s, because %s (agentguard advise)\n", r.Advice.Advice, why)
	}
	b.WriteByte('\n')
	r.modeRows(&b)
	b.WriteByte('\n')
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, c := range r.Layers {
		lead := c.State + "\t" + c.Resource + "\t" + c.Layer + "\t"
		for _, line := range append(wrap(c.Finding), wrap(c.toChange())...) {
			fmt.Fprintf(t, "%s%s\n", lead, line)
			lead = "\t\t\t"
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\n%s\n", r.verdict())
	_, err := io.WriteString(w, b.String())
	return err
}

// toChange is the line under a finding. That of what only root can try would be
// the same under most rows, and the first row says it.
func (c *cell) toChange() string {
	if c.Remedy == "" || c.Remedy == rootRemedy {
		return ""
	}
	return "to change: " + c.Remedy
}

// wrap breaks a sentence into lines of about 80 characters, at blanks only.
func wrap(s string) []string { return wrapAt(s, 80) }

func wrapAt(s string, width int) []string {
	var lines []string
	line := ""
	for _, w := range strings.Fields(s) {
		if line != "" && len(line)+1+len(w) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += w
	}
	if line == "" {
		return lines
	}
	return append(lines, line)
}

// verdict is the last line of the text.
func (r *report) verdict() string {
	n := map[string]int{}
	for _, c := range r.Layers {
		n[c.State]++
	}
	counts := fmt.Sprintf("%d ok, %d thin, %d missing, %d unknown", n[cellOK], n[cellThin], n[cellMissing], n[cellUnknown])
	switch {
	case n[cellMissing] > 0:
		return counts + ": a run with the default policy would be refused or unrecorded"
	case n[cellThin] > 0:
		return counts + ": runs go ahead, and each says in its plan and record what is thin"
	}
	return counts + ": runs go ahead"
}
