package seal

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/agentguard/agentguard/trace"
)

func TestLog(t *testing.T) {
	host := fixedKey(t, "agentguard/host.test")
	keys := publicOf(t, host)
	var entries []byte
	var f frontier
	add := func(e LogEntry) {
		line, err := e.Line()
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, line...)
		f.add(tlog.RecordHash(line))
	}
	add(LogEntry{Kind: LogStart, Run: "a", SHA256: "1"})
	seen := Place{Index: 0, Size: 1, Root: f.root().String()}
	add(LogEntry{Kind: LogStart, Run: "b"})
	add(LogEntry{Kind: LogSeal, Run: "a", SHA256: "2"})
	add(LogEntry{Kind: LogPruned, Run: "a", By: "uid 0"})
	head, err := LogHead{Size: f.size, Root: f.root(), Bytes: int64(len(entries)), Time: testTime}.Sign(host)
	if err != nil {
		t.Fatal(err)
	}
	l, err := ReadLog(bytes.NewReader(entries), head, keys)
	if err != nil || len(l.Faults) > 0 {
		t.Fatal(err, l.Faults)
	}
	if a := l.Runs[RunID{ID: "a"}]; a.Started != 0 || a.Seal != "2" || a.Pruned == nil || l.Runs[RunID{ID: "b"}].Seal != "" {
		t.Errorf("%+v", a)
	}
	if got := l.Contradicts(&seen); got != "" {
		t.Error(got)
	}
	if l.Contradicts(&Place{Size: 9, Root: seen.Root}) == "" || l.Contradicts(&Place{Size: 2, Root: seen.Root}) == "" {
		t.Error("a log that was set back is taken")
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		c := bytes.Clone(entries)
		c[r.IntN(len(c))] ^= 1 << r.IntN(8)
		if l, err := ReadLog(bytes.NewReader(c), head, keys); err == nil && len(l.Faults) == 0 {
			t.Fatalf("taken:\n%s", c)
		}
	}
	if l, _ := ReadLog(bytes.NewReader(entries[:len(entries)-5]), head, keys); len(l.Faults) == 0 {
		t.Error("a cut log is taken")
	}
}

// Whoever has the host's key can seal another record in the place of a run. Only
// what was kept elsewhere tells.
func TestAnchorsFindForgery(t *testing.T) {
	real := begin(t)
	real.events(100)
	real.checkpoint()
	notes, _ := SplitNotes(real.notes)
	line, err := (&AnchorLine{Kind: AnchorCheckpoint, Run: testRun, Note: string(notes[1])}).Line()
	if err != nil {
		t.Fatal(err)
	}
	log := append([]byte("Nov 29 16:36:25 host agentguard[7]: "), line...) // as a system log has it
	log = append(log, "another line\n{\"kind\":\"seal\"}{\n"...)
	a, err := ReadAnchors(bytes.NewReader(log))
	if err != nil || len(a.Runs[testRun]) != 1 {
		t.Fatalf("%+v %v", a, err)
	}
	keys := publicOf(t, real.host)
	if r, err := Verify(real.end(), keys, a); err != nil || r.Verdict != trace.Complete || r.Anchored != 1 {
		t.Errorf("%+v %v", r, err)
	}
	forged := begin(t)
	seed := sha256.Sum256([]byte("another"))
	if forged.run, err = newKey(RunKeyName(testRun), ed25519.NewKeyFromSeed(seed[:])); err != nil {
		t.Fatal(err)
	}
	forged.cert, _ = Certificate{Run: testRun, Key: forged.run.Public(), BootID: testBoot, Time: testTime}.Sign(forged.host)
	forged.events(100)
	m := forged.end()
	if r := verify(t, m, keys); r.Verdict != trace.Complete {
		t.Errorf("the host's key can seal anything: %+v", r)
	}
	if r, err := Verify(m, keys, a); err != nil || r.Verdict != trace.Altered {
		t.Errorf("a forged record passes: %+v %v", r, err)
	}
	sameKey := begin(t) // the run's key, had it not been erased
	sameKey.events(99)
	if r, err := Verify(sameKey.end(), keys, a); err != nil || r.Verdict != trace.Altered {
		t.Errorf("another record by the same key passes: %+v %v", r, err)
	}
}

// What the host's log says about a run is held against its seal.
func TestLogCheck(t *testing.T) {
	l := begin(t)
	l.events(5)
	m := l.end()
	keys := publicOf(t, l.host)
	id := RunID{ID: testRun}
	sum := digestOf(m[SealFile].Data).SHA256
	started := LogEntry{Kind: LogStart, Run: testRun, SHA256: digestOf(l.cert).SHA256}
	sealed := LogEntry{Kind: LogSeal, Run: testRun, SHA256: sum}
	tests := []struct {
		name    string
		entries []LogEntry
		seal    bool // the run has its seal
		bare    bool // it has no record either
		want    trace.Judgement
		text    string
	}{
		{"as it should be", []LogEntry{started, sealed}, true, false, trace.Complete, ""},
		{"killed before the seal was logged", []LogEntry{started}, true, false, trace.Complete, "killed after it had sealed"},
		{"unknown", nil, true, false, trace.Altered, "does not know this run"},
		{"unknown to a log that lost something", []LogEntry{{Kind: LogDamaged}}, true, false, trace.Complete, ""},
		{"another key", []LogEntry{{Kind: LogStart, Run: testRun, SHA256: "00"}}, true, false, trace.Altered, "another key"},
		{"another seal", []LogEntry{started, {Kind: LogSeal, Run: testRun, SHA256: "00"}}, true, false, trace.Altered, "not the seal"},
		{"no seal any more", []LogEntry{started, sealed}, false, false, trace.Altered, "the file is missing"},
		{"not sealed yet", []LogEntry{started}, false, false, trace.Unsealed, ""},
		{"another user's", []LogEntry{{Kind: LogStart, Run: testRun, User: 7}}, true, false, trace.Altered, "does not know this run"},
		{"no record yet", nil, false, true, trace.Unsealed, "no record"},
		{"no record any more", []LogEntry{started}, false, true, trace.Altered, "the start of the run"},
	}
	for _, tt := range tests {
		var b []byte
		for _, e := range tt.entries {
			line, err := e.Line()
			if err != nil {
				t.Fatal(err)
			}
			b = append(b, line...)
		}
		log, err := ReadLog(bytes.NewReader(b), nil, keys)
		if err != nil {
			t.Fatal(err)
		}
		c := clone(m)
		if !tt.seal {
			delete(c, SealFile)
		}
		if tt.bare {
			delete(c, TraceFile)
		}
		r := verify(t, c, keys)
		log.Check(r, id)
		said := strings.Join(r.Why, " ")
		for _, f := range r.Faults {
			said += f.String()
		}
		if r.Verdict != tt.want || !strings.Contains(said, tt.text) {
			t.Errorf("%s: %s, %s", tt.name, r.Verdict, said)
		}
	}
	log, _ := ReadLog(bytes.NewReader(nil), nil, keys)
	log.Runs[id] = &LoggedRun{}
	log.Runs[RunID{ID: "pruned"}] = &LoggedRun{Pruned: &LogEntry{}}
	log.Runs[RunID{User: 7, ID: "theirs"}] = &LoggedRun{}
	if got := log.Missing(0, nil); len(got) != 1 || got[0] != testRun {
		t.Errorf("missing: %v", got)
	}
	if got := log.Missing(0, []string{testRun}); len(got) != 0 {
		t.Errorf("missing: %v", got)
	}
}
