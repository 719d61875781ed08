package supervisor

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/changes"
	"github.com/agentguard/agentguard/internal/testenv"
)

// pickable is what a run left that deleted d and replaced r by a file, made new/a and new/b, and a
// path that is too long to be said.
func pickable(t *testing.T) (s *Staged, host string) {
	t.Helper()
	testenv.Root(t) // whiteouts
	upper, host, set := t.TempDir(), t.TempDir(), t.TempDir()
	for _, d := range []string{"/d/sub", "/r"} {
		must(t, os.MkdirAll(host+d, 0o755), os.WriteFile(host+d+"/secret", nil, 0o644), os.WriteFile(host+d+"/plain", nil, 0o644))
	}
	must(t, unix.Mknod(upper+"/d", unix.S_IFCHR, 0), os.WriteFile(upper+"/r", nil, 0o644), os.Mkdir(upper+"/new", 0o755),
		os.WriteFile(upper+"/new/a", nil, 0o644), os.WriteFile(upper+"/new/b", nil, 0o644))
	at := upper + "/long"
	must(t, os.Mkdir(at, 0o755))
	t.Chdir(at)
	for range 20 {
		name := string(slices.Repeat([]byte("n"), 250))
		must(t, os.Mkdir(name, 0o755), os.Chdir(name))
	}
	open := func(name string) *os.File {
		f, err := os.Open(name)
		must(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	dir := open(set)
	_, err := changes.Pack(dir, []changes.Tree{{Upper: open(upper), Lower: open(host), Host: host}}, changes.DefaultBounds())
	must(t, err)
	s = &Staged{}
	s.Set, err = changes.Open(dir)
	must(t, err)
	t.Cleanup(func() { must(t, s.Set.Close()) })
	s.Settled = make([]bool, len(s.Entries))
	return s, host
}

func (s *Staged) pickedPaths(picks []bool) (out []string) {
	for i, on := range picks {
		if p := s.Path(&s.Entries[i]); on && p != "" && len(p) < 100 {
			out = append(out, p)
		}
	}
	return out
}

// What is held back in a directory that goes keeps the directory: a commit would not come to its end.
func TestHeldKeepsItsDirectory(t *testing.T) {
	s, host := pickable(t)
	picks, held, err := s.Pick([]string{host + "/d", host + "/r"}, []string{"secret"}, false)
	must(t, err)
	want := []string{"d/sub/plain", "r/plain"}
	if got := s.pickedPaths(picks); !slices.Equal(got, want) || len(held) != 2 {
		t.Errorf("%q, %d held", got, len(held))
	}
	picks, _, err = s.Pick([]string{host + "/d"}, []string{"secret"}, true)
	must(t, err)
	if got := s.pickedPaths(picks); !slices.Equal(got, []string{"d", "d/sub", "d/sub/plain", "d/sub/secret"}) {
		t.Errorf("with what is protected: %q", got)
	}
}

// A discard of one file leaves the new directory that it is in to the others, and a commit takes it along.
func TestSelectToDiscard(t *testing.T) {
	s, host := pickable(t)
	picks, err := s.Select([]string{host + "/new/a"})
	must(t, err)
	if got := s.pickedPaths(picks); !slices.Equal(got, []string{"new/a"}) {
		t.Errorf("discarded: %q", got)
	}
	picks, _, err = s.Pick([]string{host + "/new/a"}, nil, false)
	must(t, err)
	if got := s.pickedPaths(picks); !slices.Equal(got, []string{"new", "new/a"}) {
		t.Errorf("committed: %q", got)
	}
}

// What lies too deep for its path to be said is selected with its directory.
func TestSelectDeep(t *testing.T) {
	s, host := pickable(t)
	picks, err := s.Select([]string{host + "/long"})
	must(t, err)
	n := 0
	for _, on := range picks {
		if on {
			n++
		}
	}
	if n != 21 {
		t.Errorf("%d entries", n)
	}
}

// What is collected is made: nothing of the host's is moved or goes for it.
func TestCollectMovesNothing(t *testing.T) {
	s, host := pickable(t)
	for _, e := range []*changes.Entry{{Parent: 1, Name: []byte("moved"), From: []byte("src"), New: &changes.Node{Type: changes.Dir}}, {Parent: 1, Name: []byte("was"), Old: &changes.Node{Type: changes.Symlink}, New: &changes.Node{Type: changes.Dir}}} {
		e.N = len(s.Entries) + 1
		s.Entries = append(s.Entries, *e, changes.Entry{N: e.N + 1, Parent: e.N, Name: []byte("f"), New: &changes.Node{Type: changes.File}})
	}
	s.Settled = make([]bool, len(s.Entries))
	picks, _, err := s.Pick([]string{host + "/moved", host + "/was", host + "/new"}, nil, true)
	must(t, err)
	out := s.OnlyFiles(picks, 1<<20)
	if got := s.pickedPaths(picks); !slices.Equal(got, []string{"new", "new/a", "new/b"}) || len(out) != 2 {
		t.Errorf("%q, left out %q", got, out)
	}
}
