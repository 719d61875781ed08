package trace

import (
	"bytes"
	"testing"
)

// A record goes on where its writer died, in the middle of a line or not.
func TestResume(t *testing.T) {
	for _, tail := range []string{"", `{"v":1,"seq":4,"mo`} {
		var b bytes.Buffer
		w := NewWriter(&b, testClock)
		for i := range 3 {
			if err := w.Append(openEvent(i)); err != nil {
				t.Fatal(err)
			}
		}
		w.Append(&Event{Kind: KindLoss, Loss: Loss{Class: "any", Count: 2}})
		w.Flush()
		b.WriteString(tail)
		again, was, err := ResumeWriter(&b, bytes.NewReader(b.Bytes()), testClock)
		if err != nil || was.LastSeq != 4 || was.Summary {
			t.Fatalf("%+v %v", was, err)
		}
		sum := &Event{Findings: []string{"killed"}}
		if err := again.Close(sum); err != nil {
			t.Fatal(err)
		}
		_, r := readAll(t, b.Bytes())
		if r.Disagree || r.Missing > 0 || r.Lost != 2 || !r.Summary || r.LastSeq != 5 || (r.BadLines == 1) != (tail != "") {
			t.Errorf("%q: %+v", tail, r)
		}
		if sum.Records != 4 || sum.Lost != 2 {
			t.Errorf("%+v", sum)
		}
		if j, _ := r.Judge(); j != Incomplete {
			t.Errorf("%q: %s", tail, j)
		}
	}
}
