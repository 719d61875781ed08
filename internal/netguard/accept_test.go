package netguard

import (
	"io"
	"net"
	"testing"
	"time"
)

// A connection that came just before the end of the run is passed on: it is seen
// in each of the places where it can be, the queue, on its way, and at work.
func TestLastConnectionIsPassedOn(t *testing.T) {
	for range 50 {
		r := newRig(t, nil)
		r.s.pass = time.Minute // how long the machine takes is not the matter here
		c, err := net.DialTCP("tcp4", nil, r.front.Addr().(*net.TCPAddr))
		if err != nil {
			t.Fatal(err)
		}
		mustWrite(t, c, "last words")
		c.Close()
		ended := make(chan struct{})
		go func() { r.s.end(); close(ended) }()
		if err := r.back.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		s, err := r.back.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(s); err != nil || string(b) != "last words" {
			t.Fatalf("%q %v", b, err)
		}
		s.Close()
		<-ended
	}
}

// After the end nothing begins, whatever still comes.
func TestNothingBeginsAfterTheEnd(t *testing.T) {
	r := newRig(t, nil)
	r.s.end()
	if r.s.work(func() { t.Error("it began") }) {
		t.Error("work is taken")
	}
	r.isReset()
}
