package seal

import (
	"bytes"
	"slices"
	"testing"

	"golang.org/x/mod/sumdb/tlog"
)

// An entry behind the signed head does not excuse a run that is gone.
func TestUnsignedPruned(t *testing.T) {
	key, err := NewKey("test/host")
	if err != nil {
		t.Fatal(err)
	}
	hosts, err := ParseKeys(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	var tree frontier
	add := func(kind string) {
		line, err := (&LogEntry{Kind: kind, Run: "one", Time: "2026-01-01T00:00:00Z"}).Line()
		if err != nil {
			t.Fatal(err)
		}
		log.Write(line)
		tree.add(tlog.RecordHash(line))
	}
	head := func() []byte {
		h := LogHead{Size: tree.size, Root: tree.root(), Bytes: int64(log.Len())}
		note, err := h.Sign(key)
		if err != nil {
			t.Fatal(err)
		}
		return note
	}
	missing := func(head []byte) []string {
		l, err := ReadLog(bytes.NewReader(log.Bytes()), head, hosts)
		if err != nil || len(l.Faults) > 0 {
			t.Fatalf("%v, %v", l.Faults, err)
		}
		return l.Missing(0, nil)
	}
	add(LogStart)
	before := head()
	add(LogPruned)
	if got := missing(before); !slices.Equal(got, []string{"one"}) {
		t.Errorf("unsigned: %q is missing", got)
	}
	if got := missing(head()); len(got) > 0 {
		t.Errorf("signed: %q is missing", got)
	}
}
