package trace

import (
	"encoding/json"
	"io"
)

// explained is one denial of an explanation for machines. docs/reading.md has
// the fields.
type explained struct {
	Seq       uint64   `json:"seq"`
	Count     uint64   `json:"count"`
	Kind      Kind     `json:"kind"`
	Act       string   `json:"act"`              // in words: "open for writing", "ptrace"
	Object    string   `json:"object,omitempty"` // quoted
	Errno     string   `json:"errno,omitempty"`
	Layer     Layer    `json:"layer,omitempty"`
	Certainty string   `json:"certainty,omitempty"`
	Rule      string   `json:"rule,omitempty"`
	Source    string   `json:"rule_source,omitempty"`
	Remedy    string   `json:"remedy,omitempty"`
	Why       string   `json:"why"`
	Proc      string   `json:"proc,omitempty"`
	Process   string   `json:"process,omitempty"` // what it ran, quoted
	Started   []string `json:"started_by,omitempty"`
	Host      string   `json:"host,omitempty"` // what the host has at a path that was missing
}

// ExplainJSON is Explain for machines: one JSON object for each different denial.
func ExplainJSON(w io.Writer, r io.Reader, ask func(path string) string) (Judgement, error) {
	x, report, err := explain(r)
	if err != nil {
		return "", err
	}
	for _, d := range x.denials {
		b, err := json.Marshal(d.explained(ask))
		if err != nil {
			return "", err
		}
		if _, err := w.Write(append(EscapeJSON(b), '\n')); err != nil {
			return "", err
		}
	}
	judgement, _ := report.Judge()
	return judgement, nil
}

func (d *refusal) explained(ask func(string) string) *explained {
	e := &d.e
	out := &explained{
		Seq: e.Seq, Count: d.count, Kind: e.Kind, Act: act(e), Object: Object(e), Layer: e.Layer, Certainty: string(e.Certainty),
		Rule: e.Rule, Source: e.RuleSource, Why: d.layer(), Proc: e.Proc.ID(), Process: d.image,
	}
	if e.Errno != 0 {
		out.Errno = ErrnoName(e.Errno)
	}
	if !secret(e) {
		out.Remedy = e.Remedy
	}
	for _, a := range d.ancestors() {
		out.Started = append(out.Started, a.latest())
	}
	if d.askable(ask) {
		out.Host = ask(string(e.Path))
	}
	return out
}
