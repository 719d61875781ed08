package trace

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// Whoever is given the settled records has, after Close, exactly the file,
// whatever the disk did meanwhile; and never a record that is taken back.
func TestSettledIsTheFile(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 100 {
		d := &disk{room: 20_000 + r.IntN(400_000)}
		var settled []byte
		o := testClock
		o.Settled = func(lines []byte) { settled = append(settled, lines...) }
		w := NewWriter(d, o)
		for n := range 200 + r.IntN(1500) {
			_ = w.Append(openEvent(n)) // the disk may be full
			switch r.IntN(200) {
			case 0:
				_ = w.Flush()
			case 1:
				_ = w.Settle()
				if !bytes.Equal(settled, d.Bytes()) {
					t.Fatalf("%d: settled are %d bytes, the file has %d", i, len(settled), d.Len())
				}
			}
		}
		if !bytes.HasPrefix(d.Bytes(), settled) {
			t.Fatalf("%d: settled is not the beginning of the file", i)
		}
		if r.IntN(2) == 0 {
			d.room += r.IntN(100_000)
		}
		err := w.Close(&Event{Findings: []string{fmt.Sprint(i)}})
		_, report := readAll(t, d.Bytes())
		if report.Summary && !bytes.Equal(settled, d.Bytes()) {
			t.Fatalf("%d: closed (%v), settled %d bytes of %d", i, err, len(settled), d.Len())
		}
	}
}
