package seal

import (
	"bytes"
	"testing"
	"testing/fstest"

	"github.com/agentguard/agentguard/trace"
)

// BenchmarkBuilder is what sealing adds to one record of 300 bytes.
func BenchmarkBuilder(b *testing.B) {
	line := append(bytes.Repeat([]byte{'x'}, 299), '\n')
	lines := bytes.Repeat(line, 200)
	t := NewBuilder()
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += 200 {
		t.Add(lines)
		t.Table()
	}
}

// BenchmarkVerify checks a record of 50 000 lines.
func BenchmarkVerify(b *testing.B) {
	l := begin(b)
	l.events(50_000)
	m, keys := l.end(), publicOf(b, l.host)
	b.SetBytes(int64(len(m[TraceFile].Data)))
	b.ResetTimer()
	for range b.N {
		if r, err := Verify(fstest.MapFS(m), keys, nil); err != nil || r.Verdict != trace.Complete {
			b.Fatal(r, err)
		}
	}
}

// BenchmarkSeal makes and uses the keys of one run: what is signed besides the
// host's log.
func BenchmarkSeal(b *testing.B) {
	host := fixedKey(b, "agentguard/host.test")
	for range b.N {
		k, err := NewKey(RunKeyName(testRun))
		if err != nil {
			b.Fatal(err)
		}
		cert, _ := Certificate{Run: testRun, Key: k.Public(), BootID: testBoot, Time: testTime}.Sign(host)
		s := Statement{Predicate: Predicate{Run: testRun, State: Sealed, Certificate: string(cert)}}
		if _, err := s.Sign(k); err != nil {
			b.Fatal(err)
		}
		k.Erase()
	}
}
