package runs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/trace"
)

func TestList(t *testing.T) {
	s := openState(t)
	if list, err := s.List(0); err != nil || len(list) != 0 {
		t.Errorf("empty: %v, %v", list, err)
	}
	ended := create(t, s, "20261129-163624-aaaaaa")
	if err := ended.WriteResult(result(ended.ID()), false); err != nil {
		t.Fatal(err)
	}
	ended.Close()
	create(t, s, "20261129-163625-bbbbbb").Close() // its supervisor died
	bad := create(t, s, "20261129-163626-cccccc")
	bad.WriteFile(ResultFile, []byte("{\"v\":1,"), false)
	bad.Close()
	create(t, s, "20261129-163627-dddddd") // live
	os.Mkdir(s.Path()+"/runs/.new-x", 0o700)
	os.WriteFile(s.Path()+"/runs/notes.txt", nil, 0o600)
	os.WriteFile(s.Path()+"/runs/file", nil, 0o600)

	list, err := s.List(0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range list {
		got = append(got, fmt.Sprintf("%s live=%v result=%v err=%v", l.ID, l.Live, l.Result != nil, l.Err != nil))
	}
	want := []string{
		"file live=false result=false err=true",
		"20261129-163627-dddddd live=true result=false err=false",
		"20261129-163626-cccccc live=false result=false err=true",
		"20261129-163625-bbbbbb live=false result=false err=false",
		"20261129-163624-aaaaaa live=false result=true err=false",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if list, err := s.List(2); err != nil || len(list) != 2 || list[0].ID != "file" {
		t.Errorf("List(2): %v, %v", list, err)
	}
}

func TestFind(t *testing.T) {
	s := openState(t)
	if _, err := s.Find("last"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("last of none: %v", err)
	}
	ids := []string{"20261129-163624-aaaaaa", "20261129-163625-bbbbbb", "20261129-163625-bbcccc", "20261129-163625", "20261130-000000-dddddd"}
	for _, id := range ids {
		create(t, s, id)
	}
	tests := []struct{ prefix, want, err string }{
		{"last", ids[4], ""},
		{ids[0], ids[0], ""},
		{"20261130", ids[4], ""},
		{"aaa", ids[0], ""},
		{"bbb", ids[1], ""},
		{"20261129-163625", ids[3], ""}, // an exact id comes before prefixes
		{"bb", "", `"bb" fits 2 runs: 20261129-163625-bbcccc, 20261129-163625-bbbbbb`},
		{"2026", "", `"2026" fits 5 runs: 20261130-000000-dddddd, 20261129-163625-bbcccc, 20261129-163625-bbbbbb and 2 more`},
		{"x\x1b", "", `no run "x\x1b" in `},
		{"", "", `no run "" in `},
	}
	for _, tt := range tests {
		got, err := s.Find(tt.prefix)
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("Find(%q) = %q, %v; want %q, %s", tt.prefix, got, err, tt.want, tt.err)
		}
	}
	if _, err := s.Find("bb"); !errors.As(err, new(*AmbiguousError)) {
		t.Errorf("not an AmbiguousError: %v", err)
	}
	if _, err := s.Find("zz"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("not fs.ErrNotExist: %v", err)
	}
}

func live(s *State, id string) bool {
	sum, ok := s.summary(id)
	return ok && sum.Live
}

// What the result says of the record counts with a seal only: a supervisor may have been killed between the two.
func TestListUnsealed(t *testing.T) {
	s := openState(t)
	d := create(t, s, "r1")
	r := result("r1")
	r.Record.Verdict = string(trace.Complete)
	verdict := func() string {
		sum, ok := s.summary("r1")
		if !ok || sum.Result == nil {
			t.Fatalf("%+v", sum)
		}
		return sum.Result.Record.Verdict
	}
	if err := d.WriteResult(r, false); err != nil || verdict() != "complete" {
		t.Errorf("live: %s, %v", verdict(), err)
	}
	d.Close()
	if verdict() != "unsealed" {
		t.Errorf("without a seal: %s", verdict())
	}
	for text, want := range map[string]string{"": "unsealed", "{}": "complete"} {
		if err := os.WriteFile(d.Path()+"/seal.json", []byte(text), 0o600); err != nil || verdict() != want {
			t.Errorf("with a seal %q: %s, %v", text, verdict(), err)
		}
	}
}

func TestRemove(t *testing.T) {
	s := openState(t)
	d := create(t, s, "r1")
	d.WriteFile("x", []byte("y"), false)
	os.MkdirAll(d.Path()+"/code/a", 0o700)
	os.WriteFile(d.Path()+"/code/a/b", nil, 0o600)
	outside := t.TempDir() + "/keep"
	os.WriteFile(outside, nil, 0o600)
	os.Symlink(outside, d.Path()+"/code/link")
	os.Symlink(filepath.Dir(outside), d.Path()+"/code/dirlink")
	if err := s.Remove("r1"); !errors.Is(err, ErrLive) || !live(s, "r1") {
		t.Errorf("removing a live run: %v", err)
	}
	d.Close()
	if live(s, "r1") {
		t.Error("live after Close")
	}
	if err := s.Remove("r1"); err != nil {
		t.Fatal(err)
	}
	if names, err := readNames(s.runs); err != nil || len(names) != 0 {
		t.Errorf("left: %q, %v", names, err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
	if err := s.Remove("r1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removing it again: %v", err)
	}
	if live(s, "r1") {
		t.Error("a run that is not there is live")
	}
}

// A run whose changes somebody commits is not deleted, also when only the process is left that applies
// them, with the journal. Its supervisor is waited for.
func TestRemoveCommitting(t *testing.T) {
	s := openState(t)
	own := create(t, s, "r1")
	open := func() *RunDir {
		d, err := s.Open("r1")
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	a, b := open(), open()
	shared := make(chan error)
	go func() { shared <- a.Share() }()
	own.Close()
	if err := errors.Join(<-shared, b.Share()); err != nil {
		t.Fatal(err)
	}
	if live(s, "r1") {
		t.Error("a run is live by who commits it")
	}
	a.Close()
	if err := s.Remove("r1"); !errors.Is(err, ErrLive) || !strings.Contains(err.Error(), "committed") {
		t.Errorf("one of two shares it: %v", err)
	}
	journal, err := b.OpenAppend(CommitFile)
	if err == nil {
		err = unix.Flock(int(journal.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	if err := s.Remove("r1"); !errors.Is(err, ErrLive) || !strings.Contains(err.Error(), "committed") {
		t.Errorf("with a journal in use: %v", err)
	}
	journal.Close()
	if err := s.Remove("r1"); err != nil {
		t.Error(err)
	}
}

func TestSweep(t *testing.T) {
	s := openState(t)
	create(t, s, "kept").Close()
	for _, n := range []string{".new-old", ".del-old", ".new-young", ".other"} {
		os.MkdirAll(s.Path()+"/runs/"+n+"/code", 0o700)
		if n != ".new-young" {
			past := time.Now().Add(-time.Hour)
			os.Chtimes(s.Path()+"/runs/"+n, past, past)
		}
	}
	if err := s.Sweep(time.Minute); err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, n := range []string{"kept", ".new-old", ".del-old", ".new-young", ".other"} {
		if _, err := os.Stat(s.Path() + "/runs/" + n); err == nil {
			left = append(left, n)
		}
	}
	if fmt.Sprint(left) != "[kept .new-young .other]" {
		t.Errorf("left: %q", left)
	}
}
