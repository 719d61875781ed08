package helper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

// connected are the two ends of a stream.
func connected(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { _ = c.Close() })
	}
	return ends[0], ends[1]
}

// What is written is read, with its descriptors; the end of a connection is io.EOF.
func TestFrames(t *testing.T) {
	a, b := connected(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, f := range []*Frame{
		{Kind: Records},
		{Kind: Exec, Lists: [][]string{{"", "a", "\xff\x00"}, {}, {"b"}}, Files: []*os.File{null, null, null}},
		{Kind: Done, Lists: [][]string{{string(make([]byte, 1<<20))}}, Files: []*os.File{null}},
	} {
		go func() {
			if err := Write(a, f); err != nil {
				t.Error(err)
			}
		}()
		got, err := Read(b)
		if err != nil || got.Kind != f.Kind || !reflect.DeepEqual(got.Lists, f.Lists) || len(got.Files) != len(f.Files) {
			t.Fatalf("%c: %v, %d lists, %d files", f.Kind, err, len(got.Lists), len(got.Files))
		}
		if err := got.Close(); err != nil {
			t.Error(err)
		}
	}
	a.Close()
	if _, err := Read(b); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if err := Write(a, &Frame{Lists: [][]string{{string(make([]byte, MaxBody))}}}); err == nil {
		t.Error("a frame that is too long is sent")
	}
}

// A signal that is passed on and one that is sent because the run was stopped may be
// written at once.
func TestFramesOfSeveralWriters(t *testing.T) {
	a, b := connected(t)
	const writers, each = 4, 1000
	for range writers {
		go func() {
			for range each {
				if err := Write(a, &Frame{Kind: Signal, Lists: [][]string{{"18"}}}); err != nil {
					return // the reader says so
				}
			}
		}()
	}
	for i := range writers * each {
		if f, err := Read(b); err != nil || f.Kind != Signal || len(f.Lists) != 1 || f.Lists[0][0] != "18" {
			t.Fatalf("frame %d: %+v %v", i, f, err)
		}
	}
}

// FuzzRead feeds the reader of the privileged side: no input makes it panic, keep a
// descriptor, or read more than it was sent.
func FuzzRead(f *testing.F) {
	for _, frame := range []*Frame{{Kind: Records}, {Kind: Exec, Lists: [][]string{{"/", "auto"}, {"true"}, nil}}} {
		b, err := encode(frame)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	f.Add([]byte("agh\x01X\x00\x00\x00\x04\x00\x00\x00\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 64<<10 { // more than a socket holds: the writer would wait
			return
		}
		a, b := connected(t)
		if _, err := a.Write(in); err != nil {
			t.Fatal(err)
		}
		a.Close()
		frame, err := Read(b)
		if err != nil {
			return
		}
		again, err := encode(frame)
		if err != nil || !bytes.HasPrefix(in, again) {
			t.Fatalf("%q was read as %q, %v", in, again, err)
		}
	})
}

// Many small texts, or empty lists, would take many times their bytes in memory.
func TestManyTexts(t *testing.T) {
	for name, b := range map[string][]byte{
		"lists": make([]byte, 4*(maxTexts+1)),
		"texts": append(binary.LittleEndian.AppendUint32(nil, maxTexts), make([]byte, 4*maxTexts)...),
	} {
		if _, err := decode(b); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %v", name, err)
		}
		if lists, err := decode(b[:4]); name == "lists" && (err != nil || len(lists) != 1) {
			t.Errorf("%v %v", lists, err)
		}
	}
	if _, err := decode(make([]byte, 4*maxTexts)); err != nil {
		t.Error(err)
	}
}
