package seal

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"testing"
	"testing/fstest"
	"time"

	"github.com/agentguard/agentguard/trace"
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
