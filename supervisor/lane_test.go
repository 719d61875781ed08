package supervisor

import (
	"errors"
	"runtime"
	"slices"
	"testing"
)

// A list waits for single steps of the one beside it, and sees the first
// failure up to them and no later one.
func TestLaneWait(t *testing.T) {
	broken := errors.New("broken")
	gate := make(chan struct{})
	r := &Run{}
	l := r.beside([]step{
		{"good", func() error { return nil }},
		{"bad", func() error { <-gate; return broken }},
		{"never", func() error { t.Error("a step after the one that failed was taken"); return nil }},
	})
	if err := l.wait("good"); err != nil {
		t.Error(err)
	}
	close(gate)
	for _, name := range []string{"bad", "never", "good"} {
		if err := l.wait(name); (err == broken) != (name != "good") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := l.join(nil); err != broken {
		t.Error(err)
	}
	other := errors.New("other")
	if err := l.join(other); err != other {
		t.Errorf("the main list's failure is told first: %v", err)
	}
	if (*lane)(nil).wait("anything") != nil {
		t.Error("a lane that does not exist")
	}
}

// When the other list has failed, the lane ends after its current step.
func TestLaneStops(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	r := &Run{}
	var taken []string
	l := r.beside([]step{
		{"first", func() error { close(entered); <-leave; taken = append(taken, "first"); return nil }},
		{"second", func() error { taken = append(taken, "second"); return nil }},
	})
	<-entered
	refused := errors.New("refused")
	joined := make(chan error)
	go func() { joined <- l.join(refused) }()
	for !l.stopped.Load() {
		runtime.Gosched()
	}
	close(leave)
	if err := <-joined; err != refused || !slices.Equal(taken, []string{"first"}) {
		t.Errorf("%v after %q", err, taken)
	}
	if err := l.wait("second"); err != errStopped {
		t.Error(err)
	}
}
