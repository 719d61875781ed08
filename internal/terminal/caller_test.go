//go:build linux

package terminal

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// pair is a pseudoterminal of the host; it controls nobody's session.
func pair(t *testing.T) *Pty {
	t.Helper()
	testenv.Root(t) // devpts' own ptmx is nobody's, as distributions mount it
	devpts, err := os.Open("/dev/pts")
	if err != nil {
		t.Fatal(err)
	}
	defer devpts.Close()
	p, err := OpenPty(devpts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func shown(t *testing.T, p *Pty, n int) string {
	t.Helper()
	b := make([]byte, n)
	if err := p.Master.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(p.Master, b); err != nil {
		t.Fatalf("%q: %v", b, err)
	}
	return string(b)
}

func TestIsAndSame(t *testing.T) {
	a, b := pair(t), pair(t)
	again, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(a.Slave.Fd())), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if !Is(a.Slave) || Is(null) || Is(nil) || !Same(a.Slave, again) || Same(a.Slave, b.Slave) || Same(a.Slave, null) {
		t.Error("what is a terminal, and which, is told wrongly")
	}
}

// What is taken is given back as it was, with what undoes the output; the notes are
// made before the change.
func TestTakeAndGiveBack(t *testing.T) {
	p := pair(t)
	var notes [][2][]byte
	now := func() *unix.Termios {
		s, err := unix.IoctlGetTermios(int(p.Slave.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := now()
	c := NewCaller(p.Slave, p.Slave, func(saved, raw []byte) {
		if len(notes) == 0 && *now() != *before {
			t.Error("the terminal was changed before it was noted")
		}
		notes = append(notes, [2][]byte{saved, raw})
	})
	took, err := c.Take()
	again, aerr := c.Take()
	if !took || again || err != nil || aerr != nil || !c.Taken() {
		t.Fatalf("%v %v, %v %v", took, err, again, aerr)
	}
	raw := now()
	if raw.Lflag&(unix.ECHO|unix.ICANON|unix.ISIG) != 0 || raw.Oflag&unix.OPOST != 0 || raw.Iflag&(unix.ICRNL|unix.IXON) != 0 {
		t.Errorf("%+v is not raw", raw)
	}
	last := notes[len(notes)-1]
	if !bytes.Equal(last[0], bytesOf(*before)) || !bytes.Equal(last[1], bytesOf(*raw)) {
		t.Error("the notes are not what TCGETS says")
	}
	if err := errors.Join(c.GiveBack([]byte("undo")), c.GiveBack([]byte("twice"))); err != nil || c.Taken() {
		t.Error(err)
	}
	if *now() != *before || shown(t, p, 4) != "undo" {
		t.Errorf("%+v, was %+v", now(), before)
	}
	cooked := *before // a shell has set its own meanwhile
	cooked.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(int(p.Slave.Fd()), unix.TCSETS, &cooked); err != nil {
		t.Fatal(err)
	}
	_, err = c.Take()
	if err = errors.Join(err, c.GiveBack(nil)); err != nil || *now() != cooked {
		t.Errorf("taken again, it is given back as at first: %v", err)
	}
}

// Keys reach the run until it is over; what is typed afterwards is somebody else's.
func TestKeys(t *testing.T) {
	p := pair(t)
	if err := p.Like(Raw(unix.Termios{})); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	may := make(chan bool, 1)
	may <- false
	allowed := func() bool { b := <-may; may <- b; return b }
	k, err := CopyKeys(p.Slave, w, allowed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Master.WriteString("one"); err != nil {
		t.Fatal(err)
	}
	<-may
	may <- true
	if err := k.Look(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 8)
	if n, err := io.ReadFull(r, b[:3]); err != nil || string(b[:n]) != "one" {
		t.Errorf("%q, %v", b[:n], err)
	}
	if err := errors.Join(k.Stop(), k.Stop()); err != nil || k.Ended() {
		t.Errorf("%v, ended %v", err, k.Ended())
	}
	if _, err := p.Master.WriteString("two"); err != nil {
		t.Fatal(err)
	}
	if n, err := p.Slave.Read(b); err != nil || string(b[:n]) != "two" {
		t.Errorf("after the end the next reader gets %q, %v", b[:n], err)
	}
}

// A key that a shell takes, which stopped us after we were told of it, is not waited for.
func TestKeysTakenByAnother(t *testing.T) {
	p := pair(t)
	if err := p.Like(Raw(unix.Termios{})); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	b, asked, taken := make([]byte, 8), 0, make(chan string, 1)
	k, err := CopyKeys(p.Slave, w, func() bool {
		if asked++; asked == 2 { // after poll(2), before read(2)
			n, _ := p.Slave.Read(b)
			taken <- string(b[:n])
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Master.WriteString("one"); err != nil {
		t.Fatal(err)
	}
	if s := <-taken; s != "one" {
		t.Errorf("the other got %q", s)
	}
	if err := k.Stop(); err != nil || k.Ended() {
		t.Errorf("%v, ended %v", err, k.Ended())
	}
}

// A terminal that is hung up has no more keys, whether they may be read or not.
func TestKeysEndWithTheTerminal(t *testing.T) {
	for _, may := range []bool{true, false} {
		p := pair(t)
		k, err := CopyKeys(p.Slave, io.Discard, func() bool { return may })
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Master.Close(); err != nil {
			t.Fatal(err)
		}
		<-k.Done()
		if err := k.Stop(); err != nil || !k.Ended() {
			t.Errorf("may %v: %v, ended %v", may, err, k.Ended())
		}
	}
}
