package seal

import (
	"bytes"
	"testing"
	"testing/fstest"

	"github.com/agentguard/agentguard/trace"
)

// Whoever could alter a record could alter everything that is read here: no
// bytes may make the verifier fail in any way but by saying so, and none but
// the original may pass.

func FuzzSeal(f *testing.F) {
	m, keys := sample(f)
	good := m[SealFile].Data
	f.Add(good)
	f.Add([]byte(`{"payloadType":"application/vnd.in-toto+json","payload":"e30=","signatures":[{"keyid":"","sig":""}]}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, err := Open(b, keys); err == nil && !bytes.Equal(b, good) {
			t.Errorf("taken: %q", b)
		}
	})
}

func FuzzProof(f *testing.F) {
	m, keys := sample(f)
	p, err := Prove(m, keys, 42)
	if err != nil {
		f.Fatal(err)
	}
	good, _ := p.JSON()
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, _, err := OpenProof(b, keys); err == nil && got.Line != p.Line {
			t.Errorf("proved: %q", got.Line)
		}
	})
}

func FuzzNotes(f *testing.F) {
	m, keys := sample(f)
	f.Add(m[CheckpointsFile].Data)
	f.Add([]byte("a\n\nb\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, rest := SplitNotes(b)
		var back []byte
		for _, n := range all {
			back = AppendNote(back, n)
		}
		if !bytes.Equal(append(back, rest...), b) {
			t.Errorf("notes of %q came back as %q", b, back)
		}
		for _, n := range all {
			_, _, _ = ParseCertificate(n, keys)
			_, _ = ParseLogHead(n, keys)
		}
	})
}

func FuzzVerify(f *testing.F) {
	m, keys := sample(f)
	f.Add(m[TraceFile].Data[:2000], m[BlocksFile].Data, true)
	f.Add(m[TraceFile].Data, m[BlocksFile].Data[:500], false)
	f.Add([]byte("\n\n"), []byte("1 1 "), true)
	f.Fuzz(func(t *testing.T, record, table []byte, sealed bool) {
		c := fstest.MapFS{
			TraceFile: {Data: record}, BlocksFile: {Data: table}, CheckpointsFile: m[CheckpointsFile],
			"stdout": m["stdout"], "plan.json": m["plan.json"],
		}
		if sealed {
			c[SealFile] = m[SealFile]
		}
		r, err := Verify(c, keys, nil)
		if err == nil && r.Verdict != trace.Altered && sealed && !bytes.Equal(record, m[TraceFile].Data) {
			t.Errorf("taken: %q", record)
		}
	})
}

func FuzzLog(f *testing.F) {
	host := fixedKey(f, "agentguard/host.test")
	keys := publicOf(f, host)
	line, _ := (&LogEntry{Kind: LogStart, Run: "a"}).Line()
	head, _ := LogHead{Size: 1, Time: testTime}.Sign(host)
	f.Add(line, head)
	f.Fuzz(func(t *testing.T, entries, head []byte) {
		if l, err := ReadLog(bytes.NewReader(entries), head, keys); err == nil {
			_ = l.Contradicts(&Place{Size: 1})
		}
	})
}
