package trace

import (
	"bytes"
	"errors"
	"syscall"
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

// Where a disk has no room for the end of a record, all that is there stays, and its
// end can be written later.
func TestResumeFullDisk(t *testing.T) {
	for _, tail := range []string{"", `{"v":1,"seq":4,"mo`} {
		for room := range 200 { // the summary takes fewer bytes
			d := &disk{room: 1 << 20}
			w := NewWriter(d, testClock)
			for i := range 3 {
				if err := w.Append(openEvent(i)); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			d.WriteString(tail)
			had := bytes.Clone(d.Bytes())
			resume := func() error {
				w, was, err := ResumeWriter(d, bytes.NewReader(bytes.Clone(d.Bytes())), testClock)
				if err != nil {
					t.Fatal(err)
				}
				if was.Summary {
					return nil
				}
				return w.Close(&Event{Findings: []string{"killed"}})
			}
			d.room = len(had) + room
			if err := resume(); room < 50 && !errors.Is(err, syscall.ENOSPC) || room == 199 && err != nil || !bytes.HasPrefix(d.Bytes(), had) {
				t.Errorf("%q, room for %d: %v, and of %d bytes are left %d", tail, room, err, len(had), d.Len())
			}
			d.room = 1 << 20
			if err := resume(); err != nil {
				t.Error(err)
			}
			if _, r := readAll(t, d.Bytes()); r.Disagree || r.Missing > 0 || !r.Summary || r.LastSeq != 4 || r.Torn {
				t.Errorf("%q, room for %d: %+v", tail, room, r)
			}
		}
	}
}
