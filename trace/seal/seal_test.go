package seal

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/trace"
)

const (
	testRun  = "20261129-163624-7f3k2q"
	testBoot = "1a2b3c4d-5e6f-7081-92a3-b4c5d6e7f809"
)

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
		line := bytes.Clone(l[from])
		what := "a copy"
		if r.IntN(2) == 0 { // a record of its own, with the number that fits the place
			_, rest, _ := bytes.Cut(line, []byte(`,"mono"`))
			line, what = append(fmt.Appendf(nil, `{"v":1,"seq":%d,"mono"`, i+1), rest...), "one like"
		}
		join(m, append(append(l[:i:i], line), l[i:]...))
		return fmt.Sprintf("%s of line %d before line %d", what, from+1, i+1)
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

// Any flipped bit, removed, added or swapped record is found: a thousand of
// these, and of files that are cut or missing.
func TestThousandTrials(t *testing.T) {
	m, keys := sample(t)
	r := rand.New(rand.NewPCG(6962, 1))
	for i := range 1500 {
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
		testenv.Golden(t, "golden/"+name, f.Data)
	}
	text, err := os.ReadFile("testdata/golden/" + SealFile)
	if err != nil {
		t.Fatal(err)
	}
	if s, _, err := Open(text, keys); err != nil || s.Predicate.Run != testRun {
		t.Errorf("%v", err)
	}
}

var _ note.Signer = (*Key)(nil)
