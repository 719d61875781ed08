package runs

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/trace"
	"github.com/google/go-cmp/cmp"
)

func assertSafe(t *testing.T, what string, b []byte) {
	t.Helper()
	for _, r := range strings.ReplaceAll(string(b), "\n", "") {
		if !strconv.IsPrint(r) {
			t.Errorf("%s: %U raw in %q", what, r, b)
			return
		}
	}
}

// fullResult is a run that met everything, with hostile text wherever the
// command, or somebody who edits the file, could put some.
func fullResult() *Result {
	evil := "a\nb\x1b[2J\u202e\u009b\x7f"
	deny := &trace.Event{
		Kind: trace.KindConnect, Family: "inet", Proto: "tcp", Addr: netip.MustParseAddr("192.0.2.1"), Port: 443, Errno: 1,
		Verdict: trace.VerdictDeny, Layer: trace.LayerBPF, Rule: "network.egress", RuleSource: "default", Remedy: "--allow 192.0.2.1:443", Count: 3,
	}
	open := &trace.Event{Kind: trace.KindOpen, Path: []byte(evil), Errno: 13, Verdict: trace.VerdictDeny, Layer: trace.LayerLandlock}
	r := result("20261129-163624-7f3k2q")
	r.Argv = []string{"sh", "-c", evil, "\xff", ""}
	r.Status, r.Reason, r.Signal, r.Core, r.Error = 137, ReasonMemory, "SIGKILL", true, evil
	r.Usage = Usage{Wall: 1234 * time.Millisecond, User: 120 * time.Millisecond, System: 30 * time.Millisecond, MaxMemory: 12_900_000, MaxTasks: 14}
	r.Limits = []LimitHit{{"memory", 512 << 20, 1}, {"cpu", 30e9, 2}, {"pids", 16, 3}, {evil, 1, 1}}
	r.Denials = Denials{Count: 9, First: []Denial{NewDenial(deny), NewDenial(open), {Text: evil}}}
	r.Stdout = Output{Bytes: 5000, Kept: 1000, SHA256: strings.Repeat("ab", 32), Truncated: true}
	r.Record = Record{Path: "/var/lib/agentguard/runs/" + evil, Verdict: string(trace.Incomplete), Records: 812, Lost: 37, Findings: []string{"records lost: 37", evil}}
	r.Gaps = []Gap{{"network.allowlist", "policy.yaml:3:5", "no relay in this version"}, {evil, evil, evil}}
	r.Missing = []Missing{{"tool", "/opt/x/bin/tool", "show it with --toolchains /opt/x/bin"}, {evil, evil, evil}}
	r.Thin = []string{"processes: no Landlock signal scope", evil}
	return r
}

func TestResultJSON(t *testing.T) {
	for _, r := range []*Result{fullResult(), result("r1")} {
		b, err := r.JSON()
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid(b) || bytes.Count(b, []byte("\n")) != 1 {
			t.Errorf("not one line of JSON: %q", b)
		}
		assertSafe(t, "JSON", b)
		got, err := ParseResult(b)
		if err != nil {
			t.Fatal(err)
		}
		want := *r
		want.V = 1
		if d := cmp.Diff(&want, got); d != "" {
			t.Errorf("-written +read:\n%s", d)
		}
	}
	b, _ := fullResult().JSON()
	var pretty bytes.Buffer
	json.Indent(&pretty, b, "", " ")
	testenv.Golden(t, "result.golden.json", pretty.Bytes())
}

func TestParseResultErrors(t *testing.T) {
	for in, want := range map[string]string{
		"":                                      "unexpected end",
		"[]":                                    "decode result",
		`{"v":2}`:                               "version 2",
		`{"argv":["a"]}`:                        "version 0",
		`{"v":1,"argv":["a"],"argv_b64":["="]}`: "argv_b64",
	} {
		if _, err := ParseResult([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", in, err, want)
		}
	}
	if r, err := ParseResult([]byte(`{"v":1,"argv":["a"],"argv_b64":["","YQ==","Yg=="],"later":1}`)); err != nil || len(r.Argv) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestResultIsBounded(t *testing.T) {
	d := create(t, openState(t), "r1")
	f, err := d.Create(ResultFile)
	if err != nil {
		t.Fatal(err)
	}
	f.Truncate(maxFileSize + 1)
	f.Close()
	if _, err := d.Result(); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("got %v", err)
	}
}

func TestViews(t *testing.T) {
	var b bytes.Buffer
	if err := fullResult().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	assertSafe(t, "runs show", b.Bytes())
	testenv.Golden(t, "show.golden", b.Bytes())

	b.Reset()
	if err := result("r1").WriteText(&b); err != nil {
		t.Fatal(err)
	}
	testenv.Golden(t, "show-plain.golden", b.Bytes())

	b.Reset()
	list := []Summary{
		{ID: "20261129-163628-eeeeee", Live: true},
		{ID: "20261129-163627-dddddd"},
		{ID: "20261129-163626-cccccc", Err: errors.New("bad \x1b")},
		{ID: "20261129-163624-7f3k2q", Result: fullResult()},
		{ID: "r1", Result: result("r1")},
	}
	if err := WriteTable(&b, list); err != nil {
		t.Fatal(err)
	}
	assertSafe(t, "runs ls", b.Bytes())
	testenv.Golden(t, "list.golden", b.Bytes())
}

func FuzzParseResult(f *testing.F) {
	b, _ := fullResult().JSON()
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseResult(b)
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := r.WriteText(&out); err != nil {
			t.Fatal(err)
		}
		WriteTable(&out, []Summary{{ID: "x", Result: r}})
		assertSafe(t, "views", out.Bytes())
		again, err := r.JSON()
		if err != nil {
			return // a time that JSON cannot hold
		}
		assertSafe(t, "JSON", again)
	})
}
