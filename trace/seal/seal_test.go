package seal

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/agentguard/agentguard/trace"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	testRun  = "20261129-163624-7f3k2q"
	testBoot = "1a2b3c4d-5e6f-7081-92a3-b4c5d6e7f809"
)

var testTime = time.Date(2026, 11, 29, 16, 36, 24, 123456789, time.UTC)

// fixedKey is the same in every test run.
func fixedKey(t testing.TB, name string) *Key {
	t.Helper()
	seed := sha256.Sum256([]byte(name))
	k, err := newKey(name, ed25519.NewKeyFromSeed(seed[:]))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func publicOf(t testing.TB, keys ...*Key) Keys {
	t.Helper()
	var text string
	for _, k := range keys {
		text += k.Public() + "\n"
	}
	list, err := ParseKeys(text)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// live is a run that is being recorded.
type live struct {
	t     testing.TB
	host  *Key
	run   *Key
	cert  []byte
	file  bytes.Buffer
	w     *trace.Writer
	b     *Builder
	table []byte
	notes []byte
	n     int64
}

func begin(t testing.TB) *live {
	t.Helper()
	l := &live{t: t, host: fixedKey(t, "agentguard/host.test"), run: fixedKey(t, RunKeyName(testRun)), b: NewBuilder()}
	var err error
	if l.cert, err = (Certificate{Run: testRun, Key: l.run.Public(), BootID: testBoot, Time: testTime}).Sign(l.host); err != nil {
		t.Fatal(err)
	}
	l.w = trace.NewWriter(&l.file, trace.Options{Mono: 1, Wall: testTime, BootID: testBoot, Settled: l.b.Add})
	return l
}

func (l *live) events(n int) {
	for range n {
		l.n++
		err := l.w.Append(&trace.Event{
			Kind: trace.KindOpen, Phase: trace.PhaseCommand, Mono: uint64(l.n), Proc: trace.Proc{Pid: 7, Tid: 7, Start: 9},
			Path: fmt.Appendf(nil, "/usr/lib/x%d", l.n), PathSource: trace.PathKernel, Access: "r",
		})
		if err != nil {
			l.t.Fatal(err)
		}
	}
}

func (l *live) checkpoint() {
	l.t.Helper()
	if err := l.w.Settle(); err != nil {
		l.t.Fatal(err)
	}
	if len(l.notes) == 0 {
		l.notes = AppendNote(l.notes, l.cert)
	}
	c := Checkpoint{Run: testRun, Head: l.b.Cut(), Time: testTime.Add(time.Second)}
	text, err := c.Sign(l.run)
	if err != nil {
		l.t.Fatal(err)
	}
	l.notes = AppendNote(l.notes, text)
	l.table = append(l.table, l.b.Table()...)
}

// files is the directory as a kill -9 would leave it now.
func (l *live) files() fstest.MapFS {
	m := fstest.MapFS{
		TraceFile: {Data: bytes.Clone(l.file.Bytes())}, BlocksFile: {Data: bytes.Clone(l.table)},
		"stdout": {Data: []byte("out\n")}, "plan.json": {Data: []byte("{}\n")},
	}
	if len(l.notes) > 0 {
		m[CheckpointsFile] = &fstest.MapFile{Data: bytes.Clone(l.notes)}
	}
	return m
}

func digestOf(b []byte) Digest {
	sum := sha256.Sum256(b)
	return Digest{hex.EncodeToString(sum[:])}
}

// end closes and seals the run.
func (l *live) end() fstest.MapFS {
	l.t.Helper()
	if err := l.w.Close(&trace.Event{Mono: uint64(l.n) + 1, Reason: "exit"}); err != nil {
		l.t.Fatal(err)
	}
	head := l.b.Cut()
	l.table = append(l.table, l.b.Table()...)
	m := l.files()
	points, _ := SplitNotes(l.notes)
	last, err := Checkpoint{Run: testRun, Head: head, Time: testTime.Add(time.Minute)}.Sign(l.run)
	if err != nil {
		l.t.Fatal(err)
	}
	s := Statement{Predicate: Predicate{
		Run: testRun, State: Sealed, Tool: "test", BootID: testBoot, Started: Stamp(testTime), Ended: Stamp(testTime.Add(time.Minute)),
		Certificate: string(l.cert), Checkpoint: string(last), Tree: NewTree(head), Checkpoints: int64(max(len(points)-1, 0)),
		Verdict: trace.Complete, Reason: "exit", Counts: map[string]uint64{"kind.open": uint64(l.n)},
	}}
	sum := l.b.Sum()
	s.Subject = []Subject{{TraceFile, Digest{hex.EncodeToString(sum[:])}}}
	for _, name := range []string{"plan.json", "stdout"} {
		s.Subject = append(s.Subject, Subject{name, digestOf(m[name].Data)})
	}
	text, err := s.Sign(l.run)
	if err != nil {
		l.t.Fatal(err)
	}
	m[SealFile] = &fstest.MapFile{Data: text}
	return m
}

// sample is a sealed run with checkpoints at odd places.
func sample(t testing.TB) (fstest.MapFS, Keys) {
	l := begin(t)
	l.events(10)
	l.checkpoint()
	l.events(200)
	l.checkpoint()
	l.events(77)
	return l.end(), publicOf(t, l.host)
}

func clone(m fstest.MapFS) fstest.MapFS {
	c := maps.Clone(m)
	for name, f := range c {
		c[name] = &fstest.MapFile{Data: bytes.Clone(f.Data)}
	}
	return c
}

func verify(t testing.TB, m fs.FS, keys Keys) *Report {
	t.Helper()
	r, err := Verify(m, keys, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestVerifySealed(t *testing.T) {
	m, keys := sample(t)
	r := verify(t, m, keys)
	if r.Verdict != trace.Complete || len(r.Faults) > 0 || r.Verified != r.Records || r.Records != 288 || r.Bytes != int64(len(m[TraceFile].Data)) {
		t.Errorf("%+v", r)
	}
	if want := fixedKey(t, "agentguard/host.test").ID(); r.SignBy != want || r.Run != testRun {
		t.Errorf("by %s of %s", r.SignBy, r.Run)
	}
}

// A short run has no checkpoint file at all, and one without records a tree
// without leaves but that of its summary.
func TestVerifyShort(t *testing.T) {
	for _, n := range []int{0, 1, 62, 63, 64, 65, 128} {
		l := begin(t)
		l.events(n)
		if r := verify(t, l.end(), publicOf(t, l.host)); r.Verdict != trace.Complete || r.Verified != int64(n)+1 {
			t.Errorf("%d records: %+v", n, r)
		}
	}
}

// The tree is the one that tlog would build from the same blocks.
func TestTreeIsRFC6962(t *testing.T) {
	var f frontier
	var stored hashes
	for i := range int64(300) {
		if i > 0 {
			want, err := tlog.TreeHash(i, stored)
			if err != nil || f.root() != want {
				t.Fatalf("root of %d leaves: %v", i, err)
			}
		}
		leaf := tlog.RecordHash(fmt.Append(nil, i))
		f.add(leaf)
		list, err := tlog.StoredHashesForRecordHash(i, leaf, stored)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, list...)
	}
}

// trial changes a run in one way, and says what it did.
type trial struct {
	name string
	do   func(r *rand.Rand, m fstest.MapFS) string
}

func split(m fstest.MapFS) [][]byte { return bytes.SplitAfter(m[TraceFile].Data, []byte("\n")) }

func join(m fstest.MapFS, l [][]byte) { m[TraceFile].Data = bytes.Join(l, nil) }

var trials = []trial{
	{"bit", func(r *rand.Rand, m fstest.MapFS) string {
		names := []string{TraceFile, TraceFile, TraceFile, BlocksFile, CheckpointsFile, SealFile, "stdout", "plan.json"}
		name := names[r.IntN(len(names))]
		i, bit := r.IntN(len(m[name].Data)), r.IntN(8)
		m[name].Data[i] ^= 1 << bit
		return fmt.Sprintf("bit %d of byte %d of %s", bit, i, name)
	}},
	{"removed", func(r *rand.Rand, m fstest.MapFS) string {
		l := split(m)
		i := r.IntN(len(l) - 1)
		join(m, append(l[:i:i], l[i+1:]...))
		return fmt.Sprintf("line %d", i+1)
	}},
	{"added", func(r *rand.Rand, m fstest.MapFS) string {
		l := split(m)
		i, from := r.IntN(len(l)), r.IntN(len(l)-1)
		join(m, append(append(l[:i:i], l[from]), l[i:]...))
		return fmt.Sprintf("a copy of line %d before line %d", from+1, i+1)
	}},
	{"swapped", func(r *rand.Rand, m fstest.MapFS) string {
		l := split(m)
		i := r.IntN(len(l) - 2)
		j := i + 1 + r.IntN(len(l)-2-i)
		l[i], l[j] = l[j], l[i]
		join(m, l)
		return fmt.Sprintf("lines %d and %d", i+1, j+1)
	}},
	{"cut", func(r *rand.Rand, m fstest.MapFS) string {
		n := r.IntN(len(m[TraceFile].Data))
		m[TraceFile].Data = m[TraceFile].Data[:n]
		return fmt.Sprintf("at byte %d", n)
	}},
	{"file", func(r *rand.Rand, m fstest.MapFS) string {
		names := []string{TraceFile, BlocksFile, CheckpointsFile, "stdout", "plan.json"}
		name := names[r.IntN(len(names))]
		delete(m, name)
		return name
	}},
}

// Any flipped bit, removed, added or swapped record is found.
func TestThousandTrials(t *testing.T) {
	m, keys := sample(t)
	r := rand.New(rand.NewPCG(6962, 1))
	for i := range 1200 {
		kind := trials[i%len(trials)]
		c := clone(m)
		what := kind.do(r, c)
		if got := verify(t, c, keys); got.Verdict != trace.Altered || len(got.Faults) == 0 {
			t.Errorf("trial %d, %s %s: %s %v", i, kind.name, what, got.Verdict, got.Faults)
		}
	}
}

// The verifier says where.
func TestWhere(t *testing.T) {
	m, keys := sample(t)
	offset := func(line int) (n int64) {
		for _, l := range split(m)[:line-1] {
			n += int64(len(l))
		}
		return n
	}
	tests := []struct {
		name string
		do   func(l [][]byte) [][]byte
		line int
		seq  int64
		text string
	}{
		{"altered", func(l [][]byte) [][]byte { l[99] = bytes.Replace(l[99], []byte("x100"), []byte("x10O"), 1); return l }, 100, 100, "altered"},
		{"removed", func(l [][]byte) [][]byte { return append(l[:99:99], l[100:]...) }, 100, 100, "removed before this line: 1 record"},
		{"three removed", func(l [][]byte) [][]byte { return append(l[:99:99], l[102:]...) }, 100, 100, "removed before this line: 3 records"},
		{"added", func(l [][]byte) [][]byte { return append(append(l[:99:99], []byte("{}\n")), l[99:]...) }, 100, 100, "added: 1 record"},
		{"swapped", func(l [][]byte) [][]byte { l[99], l[199] = l[199], l[99]; return l }, 100, 100, "swapped: the record of line 200"},
		{"truncated", func(l [][]byte) [][]byte { return l[:250] }, 251, 251, "cut off from here: 38 records"},
		{"grown", func(l [][]byte) [][]byte { return append(l[:len(l)-1:len(l)-1], []byte("{}\n")) }, 289, 289, "added at the end: 1 record"},
		{"first", func(l [][]byte) [][]byte { l[0][3] ^= 1; return l }, 1, 1, "altered"},
	}
	for _, tt := range tests {
		c := clone(m)
		join(c, tt.do(split(c)))
		r := verify(t, c, keys)
		want := Fault{File: TraceFile, Line: int64(tt.line), Seq: tt.seq, Offset: offset(tt.line)}
		if len(r.Faults) != 1 || !strings.HasPrefix(r.Faults[0].Text, tt.text) {
			t.Errorf("%s: %v", tt.name, r.Faults)
			continue
		}
		got := r.Faults[0]
		if got.Text = ""; got != want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, want)
		}
		if r.Verified > int64(tt.line) || r.Verified < int64(tt.line)-BlockRecords {
			t.Errorf("%s: %d records verified", tt.name, r.Verified)
		}
	}
}

// A record that somebody else sealed is not taken for the host's.
func TestForeignKey(t *testing.T) {
	m, _ := sample(t)
	other := fixedKey(t, "agentguard/other.test")
	r := verify(t, m, publicOf(t, other))
	if r.Verdict != trace.Altered || !strings.Contains(r.Faults[0].Text, "agentguard/host.test+") {
		t.Errorf("%+v", r)
	}
	same := fixedKey(t, "agentguard/host.test")
	seed := sha256.Sum256([]byte("thief"))
	thief, err := newKey(same.Name(), ed25519.NewKeyFromSeed(seed[:]))
	if err != nil {
		t.Fatal(err)
	}
	l := begin(t)
	l.cert, _ = Certificate{Run: testRun, Key: l.run.Public(), BootID: testBoot, Time: testTime}.Sign(thief)
	l.events(3)
	if r := verify(t, l.end(), publicOf(t, same)); r.Verdict != trace.Altered {
		t.Errorf("a thief's key of the same name: %+v", r)
	}
}

// A killed run is true up to its last checkpoint, whatever follows.
func TestUnsealedPrefix(t *testing.T) {
	l := begin(t)
	l.events(100)
	keys := publicOf(t, l.host)
	if r := verify(t, l.files(), keys); r.Verdict != trace.Unsealed || r.Verified != 0 {
		t.Errorf("without a checkpoint: %+v", r)
	}
	l.checkpoint()
	l.events(30)
	l.w.Flush()
	m := l.files()
	m[TraceFile].Data = append(m[TraceFile].Data, "{\"v\":1,\"se"...)
	m[CheckpointsFile].Data = append(m[CheckpointsFile].Data, "agentguard/run"...)
	if r := verify(t, m, keys); r.Verdict != trace.Unsealed || r.Verified != 100 || r.Records != 131 || len(r.Faults) > 0 {
		t.Errorf("%+v", r)
	}
	c := clone(m)
	c[TraceFile].Data[500] ^= 4
	if r := verify(t, c, keys); r.Verdict != trace.Altered || r.Faults[0].Line == 0 {
		t.Errorf("altered: %+v", r)
	}
	c = clone(m)
	c[TraceFile].Data = c[TraceFile].Data[:900]
	if r := verify(t, c, keys); r.Verdict != trace.Altered {
		t.Errorf("cut: %+v", r)
	}
}

func TestProve(t *testing.T) {
	m, keys := sample(t)
	for seq := uint64(1); seq <= 288; seq += 7 {
		p, err := Prove(m, keys, seq)
		if err != nil {
			t.Fatal(seq, err)
		}
		b, err := p.JSON()
		if err != nil {
			t.Fatal(err)
		}
		got, c, err := OpenProof(b, keys)
		if err != nil || got.Line+"\n" != string(split(m)[seq-1]) || c.Records != 288 {
			t.Fatalf("seq %d: %+v %v", seq, got, err)
		}
		if _, _, err := OpenProof(b, publicOf(t, fixedKey(t, "agentguard/other.test"))); !errors.As(err, new(*ForeignKeyError)) {
			t.Fatalf("foreign: %v", err)
		}
		if seq != 64 {
			continue
		}
		for i := range b {
			c := bytes.Clone(b)
			c[i] ^= 1 << (i % 7)
			if _, _, err := OpenProof(c, keys); err == nil {
				t.Fatalf("seq %d: byte %d flipped, and the proof still holds", seq, i)
			}
		}
	}
	if _, err := Prove(m, keys, 289); !errors.Is(err, ErrNoRecord) {
		t.Error(err)
	}
}

func TestProveUnsealed(t *testing.T) {
	l := begin(t)
	l.events(10)
	l.checkpoint()
	l.events(5)
	l.w.Flush()
	keys := publicOf(t, l.host)
	p, err := Prove(l.files(), keys, 10)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := p.JSON()
	if _, c, err := OpenProof(b, keys); err != nil || c.Records != 10 {
		t.Error(c, err)
	}
	if _, err := Prove(l.files(), keys, 11); err == nil {
		t.Error("proved what no checkpoint covers")
	}
}

func TestKeys(t *testing.T) {
	k, err := NewKey("agentguard/x")
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParsePrivate(k.MarshalPrivate())
	if err != nil || again.Public() != k.Public() {
		t.Errorf("%v", err)
	}
	for _, bad := range []string{"", "x", privatePrefix, privatePrefix + "n AAAA"} {
		if _, err := ParsePrivate([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	priv := k.priv
	k.Erase()
	if !bytes.Equal(priv, make([]byte, ed25519.PrivateKeySize)) {
		t.Error("not erased")
	}
	if _, err := k.Sign([]byte("x")); err == nil {
		t.Error("an erased key signed")
	}
	if _, err := NewKey("two words"); err == nil {
		t.Error("a name with a blank was taken")
	}
}

// Golden files: what is written today must be read for ever.
func TestGolden(t *testing.T) {
	m, keys := sample(t)
	p, err := Prove(m, keys, 42)
	if err != nil {
		t.Fatal(err)
	}
	proof, _ := p.JSON()
	m["proof.json"] = &fstest.MapFile{Data: proof}
	delete(m, TraceFile) // the schema of records has golden files of its own
	for name, f := range m {
		path := "testdata/golden/" + name
		if *update {
			if err := os.MkdirAll("testdata/golden", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, f.Data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(want, f.Data) {
			t.Errorf("%s differs from its golden file (-update writes it): %v", name, err)
		}
	}
	text, err := os.ReadFile("testdata/golden/" + SealFile)
	if err != nil {
		t.Fatal(err)
	}
	if s, _, err := Open(text, keys); err != nil || s.Predicate.Run != testRun {
		t.Errorf("%v", err)
	}
}

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

var _ note.Signer = (*Key)(nil)

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
		want    trace.Judgement
		text    string
	}{
		{"as it should be", []LogEntry{started, sealed}, true, trace.Complete, ""},
		{"killed before the seal was logged", []LogEntry{started}, true, trace.Complete, "killed after it had sealed"},
		{"unknown", nil, true, trace.Altered, "does not know this run"},
		{"unknown to a log that lost something", []LogEntry{{Kind: LogDamaged}}, true, trace.Complete, ""},
		{"another key", []LogEntry{{Kind: LogStart, Run: testRun, SHA256: "00"}}, true, trace.Altered, "another key"},
		{"another seal", []LogEntry{started, {Kind: LogSeal, Run: testRun, SHA256: "00"}}, true, trace.Altered, "not the seal"},
		{"no seal any more", []LogEntry{started, sealed}, false, trace.Altered, "the file is missing"},
		{"not sealed yet", []LogEntry{started}, false, trace.Unsealed, ""},
		{"another user's", []LogEntry{{Kind: LogStart, Run: testRun, User: 7}}, true, trace.Altered, "does not know this run"},
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
