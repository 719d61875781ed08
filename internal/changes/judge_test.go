package changes

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// What is too large to be read is not called harmless: git reads a configuration of any size.
func TestTooLargeToJudge(t *testing.T) {
	for name, held := range map[string]bool{".git/config": true, "repo/config": true, "package.json": false, "yarn.lock": false} {
		upper, base := t.TempDir(), t.TempDir()
		must(t, os.MkdirAll(filepath.Dir(upper+"/"+name), 0o755), os.WriteFile(upper+"/"+name, bytes.Repeat([]byte("#\n"), judged/2+1), 0o644))
		set := plainTree(t, upper, base)
		if d := set.Danger(&set.Entries[len(set.Entries)-1], nil); d.Why == "" || d.Protected != held {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// Readers of JSON tell names apart by case.
func TestScripts(t *testing.T) {
	old := `{"scripts": {"test": "go"}}`
	for now, same := range map[string]bool{
		`{"scripts": {"test": "go"}, "name": "x"}`:                        true,
		`{"scripts": {"test": "evil"}, "Scripts": {"test": "go"}}`:        false,
		`{"scripts": {"test": "go"}, "packageManager": "yarn@https://x"}`: false,
		`{"scripts": {"test": "go"}`:                                      false,
	} {
		if got := reflect.DeepEqual(scripts([]byte(old)), scripts([]byte(now))); got != same {
			t.Errorf("%s: %v", now, got)
		}
	}
}

// A place is what follows the name of a user, however it is written.
func TestNewHost(t *testing.T) {
	old := `"resolved": "https://registry.example/a.tgz", "integrity": "sha512-ab//cd+=="`
	for now, want := range map[string]string{
		old: "", strings.ToUpper(old): "",
		`"https://registry.example/b.tgz"`:            "",
		`"https://registry.example@evil.example/a"`:   "evil.example",
		`"https://registry.example:x@evil.example/a"`: "evil.example",
		`"https:\/\/evil.example\/a"`:                 "evil.example",
		`"https://\u0065vil.example/a"`:               "evil.example",
		`"HTTPS://evil.example/a"`:                    "evil.example",
		`"git+ssh://git@evil.example/a"`:              "evil.example",
		`"git@evil.example:a"`:                        "evil.example",
		`"https://registry.example:8443/a"`:           "registry.example:8443",
		`"https://registry.example/a?u=//x.example"`:  "",
	} {
		if got := newHost([]byte(old), []byte(now)); got != want {
			t.Errorf("%s: %q", now, got)
		}
	}
}

// A rename neither takes what the policy protects away nor brings it.
func TestRenameOfProtected(t *testing.T) {
	for _, c := range []struct {
		from, to string
		held     bool
	}{{"secret", "other", true}, {"conf", "other", true}, {"other", "conf", true}, {"other", "else", false}, {"sub/conf", "else", false}} {
		s := &Set{roots: []int{1}, Entries: []Entry{
			{N: 1, Name: []byte("/ws"), Old: &Node{Type: Dir}},
			{N: 2, Parent: 1, Name: []byte(c.to), From: []byte(c.from), New: &Node{Type: Dir}, Base: &Node{Type: Dir}},
			{N: 3, Parent: 2, Name: []byte("f"), Old: &Node{Type: File}, New: &Node{Type: File}},
		}}
		if d := s.Danger(&s.Entries[1], []string{"secret", "conf/*.key"}); d.Protected != c.held {
			t.Errorf("%s -> %s: %+v", c.from, c.to, d)
		}
		if d := s.Danger(&s.Entries[2], []string{"secret"}); d.Protected != (c.from == "secret") {
			t.Errorf("in %s -> %s: %+v", c.from, c.to, d)
		}
	}
}

// A mount of the host's in a workspace is a tree of its own, and what lies in it is judged by where it
// lies for other programs. That all of a workspace lies somewhere is nothing to hold back.
func TestDangerInMount(t *testing.T) {
	for _, c := range []struct {
		root, within, path string
		why, held          bool
	}{
		{"/home/u/ws/.git", ".git", "commondir", true, true},
		{"/home/u/ws/.github", ".github", "workflows/ci.yml", true, false},
		{"/home/u/ws/.vscode", ".vscode", "tasks.json", true, true},
		{"/home/u/ws/.vscode/x/y", ".vscode/x/y", "z", true, true},
		{"/home/u/ws/deploy", "deploy", "prod.key", true, true},
		{"/home/u/deploy", "", "prod.key", false, false},
		{"/home/u/.config", "", "fish/config.fish", true, true},
		{"/home/u/.ssh", "", "authorized_keys", true, true},
		{"/home/u/.claude/worktrees/x", "", "main.go", false, false},
		{"/home/u/.vscode/x", "", "main.go", false, false},
		{"/", "", "main.go", false, false},
	} {
		dir := open(t, t.TempDir())
		upper := t.TempDir()
		must(t, os.MkdirAll(filepath.Dir(upper+"/"+c.path), 0o755), os.WriteFile(upper+"/"+c.path, nil, 0o644))
		_, err := Pack(dir, []Tree{{Upper: open(t, upper), Lower: open(t, t.TempDir()), Host: c.root, In: c.within}}, DefaultBounds())
		must(t, err)
		s, err := Open(dir)
		must(t, err)
		if d := s.Danger(&s.Entries[len(s.Entries)-1], []string{"deploy/*.key"}); (d.Why != "") != c.why || d.Protected != c.held {
			t.Errorf("%s in %s: %+v", c.path, c.root, d)
		}
		must(t, s.Close())
	}
}
