// Package export turns the record of a run into events of schemas that log
// systems know: the Elastic Common Schema (ECS) and the Open Cybersecurity
// Schema Framework (OCSF). Nothing is stored in them: the record stays what it
// is, and an export can be made again at any time. docs/export.md says what
// becomes of each kind of record; tests hold the output to the published schemas.
package export

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agentguard/agentguard/trace"
)

// The formats.
const (
	JSONL = "jsonl" // the records as they are stored
	ECS   = "ecs"   // Elastic Common Schema 9.4, one event a line
	OCSF  = "ocsf"  // Open Cybersecurity Schema Framework 1.2.0, one event a line
)

// Formats returns the names of all formats.
func Formats() []string { return []string{JSONL, ECS, OCSF} }

// Write reads a record and writes it in a format, one JSON object a line, all
// safe to print. With original, each event carries the line it was made of. The
// judgement of the record is returned, and errors of r and w.
func Write(w io.Writer, r io.Reader, format string, original bool) (trace.Judgement, error) {
	if !slices.Contains(Formats(), format) {
		return "", fmt.Errorf("no export format is called %s; there are %s", trace.Quote(format), strings.Join(Formats(), ", "))
	}
	in, out := trace.NewReader(r), bufio.NewWriterSize(w, 64<<10)
	x := &exporter{images: map[string]image{}}
	err := in.Each(func(e *trace.Event) error {
		if format == JSONL {
			out.Write(in.Raw())
			return out.WriteByte('\n')
		}
		if original {
			x.original = string(in.Raw())
		}
		return x.write(out, e, format)
	})
	if err != nil {
		return "", err
	}
	j, _ := in.Report().Judge()
	return j, out.Flush()
}

// exporter keeps what later events need of earlier ones.
type exporter struct {
	start    trace.Event      // what the record says of the run and its host
	images   map[string]image // by process: what it executed last
	ended    []string         // of these, the processes that ended last
	original string
}

// maxEnded bounds the ended processes that are remembered: of one with threads,
// counts may come after its end (docs/record.md, exit).
const maxEnded = 64

// end forgets a process in favour of others, some time after its end.
func (x *exporter) end(id string) {
	if _, ok := x.images[id]; !ok {
		return
	}
	if len(x.ended) >= maxEnded {
		delete(x.images, x.ended[0])
		x.ended = slices.Delete(x.ended, 0, 1)
	}
	x.ended = append(x.ended, id)
}

// image is what a process runs.
type image struct{ path, command string }

// maxImages bounds the processes that are remembered; of the others an event
// says the identity only.
const maxImages = 50_000

// maxCommand bounds a command line, in bytes: log systems refuse longer fields.
const maxCommand = 8000

func (x *exporter) write(w io.Writer, e *trace.Event, format string) error {
	if e.Kind == trace.KindStart {
		x.start = trace.Event{Run: e.Run, BootID: e.BootID, Tool: e.Tool, Kernel: e.Kernel, Tier: e.Tier, Degraded: slices.Clone(e.Degraded)}
	}
	x.remember(e)
	d := x.ocsf(e)
	if format == ECS {
		d = x.ecs(e)
	}
	if e.Kind == trace.KindExit {
		x.end(e.Proc.ID())
	}
	b, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("export: record %d: %w", e.Seq, err)
	}
	_, err = w.Write(append(trace.EscapeJSON(b), '\n'))
	return err
}

// failed reports whether the act did not come to be.
func failed(e *trace.Event) bool {
	return e.Errno != 0 || e.Denied() || e.Kind == trace.KindExecFail
}

// unsettled reports whether the record does not say what came of an act: one of a
// command's filter (docs/record.md) says only what was asked for.
func unsettled(e *trace.Event) bool {
	switch e.Kind {
	case trace.KindConnect, trace.KindBind, trace.KindSend:
		return e.Syscall != "" && e.Verdict == "" && e.Errno == 0
	case trace.KindExec:
		return e.Syscall != ""
	}
	return false
}

// remember notes what runs in a process; a child begins as its parent is.
func (x *exporter) remember(e *trace.Event) {
	switch {
	case len(x.images) >= maxImages:
	case e.Kind == trace.KindExec:
		x.images[e.Proc.ID()] = image{text(e.Path), trace.QuoteArgs(e.Argv, maxCommand)}
	case e.Kind == trace.KindFork && !isThread(e):
		if i, ok := x.images[e.Proc.ID()]; ok {
			x.images[e.Child.ID()] = i
		}
	}
}

// began returns when a process began, from its start on CLOCK_BOOTTIME and the
// one offset between that and the wall clock that all records share.
func began(e *trace.Event, start uint64) time.Time {
	return time.Unix(0, e.Wall-int64(e.Mono)+int64(start)).UTC()
}

// doc is a JSON object. put leaves out what is empty, so that absent stays
// absent.
type doc map[string]any

// put sets a value at a path of names joined by dots.
func (d doc) put(at string, v any) {
	switch v := v.(type) {
	case string:
		if v == "" {
			return
		}
	case uint64:
		if v == 0 {
			return
		}
	case []string:
		if len(v) == 0 {
			return
		}
	case bool:
		if !v {
			return
		}
	case doc:
		if len(v) == 0 {
			return
		}
	}
	name, rest, nested := strings.Cut(at, ".")
	if !nested {
		d[name] = v
		return
	}
	inner, ok := d[name].(doc)
	if !ok {
		inner = doc{}
		d[name] = inner
	}
	inner.put(rest, v)
}

// text is a text of the command's in UTF-8; rest adds the exact bytes where
// that changed them.
func text(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }

func exact(b []byte) string {
	if utf8.Valid(b) {
		return ""
	}
	return base64.StdEncoding.EncodeToString(b)
}

func texts(list [][]byte) []string {
	var out []string
	for _, b := range list {
		out = append(out, text(b))
	}
	return out
}

// base is the last name of a path.
func base(p string) string {
	if p == "" {
		return ""
	}
	return path.Base(p)
}

// rest is what neither schema has a place for, under the record's own names.
func (x *exporter) rest(e *trace.Event) doc {
	d := doc{}
	d.put("run", x.start.Run)
	d.put("kind", string(e.Kind))
	d.put("phase", string(e.Phase))
	d.put("mono", e.Mono)
	d.put("syscall", e.Syscall)
	d.put("count", e.Count)
	d.put("path_b64", exact(e.Path))
	d.put("path_source", string(e.PathSource))
	d.put("path_given", text(e.PathGiven))
	d.put("to", text(e.To))
	d.put("to_b64", exact(e.To))
	d.put("access", e.Access)
	d.put("flags", e.Flags)
	d.put("truncated", e.PathLen != 0 || e.ToLen != 0 || e.ArgvLen != 0)
	d.put("memfd", e.Memfd)
	d.put("deleted", e.Deleted)
	d.put("anon", e.Anon)
	d.put("filtered", e.Filtered)
	d.put("name", text(e.Name))
	d.put("script", text(e.Script))
	d.put("hash_state", e.HashState)
	d.put("target", e.Target.ID())
	d.put("end", e.End)
	d.put("method", e.Method)
	d.put("status", uint64(e.Status))
	d.put("hidden", e.Hidden)
	d.put("credential", e.Credential)
	d.put("verdict", string(e.Verdict))
	d.put("layer", string(e.Layer))
	d.put("rule", e.Rule)
	d.put("rule_source", e.RuleSource)
	d.put("remedy", e.Remedy)
	d.put("certainty", string(e.Certainty))
	d.put("blockers", e.Blockers)
	if e.Kind == trace.KindChown {
		d["new_uid"], d["new_gid"] = e.NewUID, e.NewGID
	}
	x.restOfRun(d, e)
	return d
}

// restOfRun adds what is said of the run and not of one act.
func (x *exporter) restOfRun(d doc, e *trace.Event) {
	if e.Signal != 0 {
		d.put("signal", trace.SignalName(e.Signal))
	}
	d.put("utime", e.UTime)
	d.put("stime", e.STime)
	d.put("maxrss", e.MaxRSS)
	d.put("limit", e.Limit)
	d.put("limit_value", e.LimitValue)
	d.put("limit_hits", e.LimitHits)
	d.put("probe", e.Probe)
	d.put("stream", e.Stream)
	if e.Kind == trace.KindOutput {
		d.put("bytes", e.Bytes)
		d.put("sha256", e.SHA256)
	}
	d.put("kept", e.Kept)
	d.put("reason", e.Reason)
	d.put("lost_class", e.Loss.Class)
	d.put("lost_cause", e.Loss.Cause)
	d.put("lost_count", e.Loss.Count)
	d.put("after_seq", e.Loss.AfterSeq)
	d.put("before_seq", e.Loss.BeforeSeq)
	d.put("records", e.Records)
	d.put("lost", e.Lost)
	d.put("findings", slices.Clone(e.Findings))
	if e.Kind == trace.KindStart {
		d.put("tier", e.Tier)
		d.put("plan_sha256", e.PlanSHA256)
	}
	if e.Kind == trace.KindStart || e.Kind == trace.KindSummary { // who reads the one may not have the other
		d.put("degraded", x.start.Degraded)
	}
}
