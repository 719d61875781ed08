package changes

import (
	"strings"
	"testing"
)

func TestDangerByPath(t *testing.T) {
	s := &Set{roots: []int{1}, Entries: []Entry{{N: 1, Name: []byte("/ws"), Old: &Node{Type: Dir}}}}
	at := func(p string, n Node) Danger {
		s.Entries = s.Entries[:1]
		parent := 1
		parts := splitPath([]byte(p))
		for i, name := range parts {
			e := Entry{N: len(s.Entries) + 1, Parent: parent, Name: name}
			if i == len(parts)-1 {
				e.New = &n
			}
			s.Entries = append(s.Entries, e)
			parent = e.N
		}
		return s.Danger(&s.Entries[len(s.Entries)-1], []string{"secret", "conf/*.key"})
	}
	file := Node{Type: File, Mode: 0o644}
	for _, c := range []struct {
		path      string
		node      Node
		why, held bool
	}{
		{"src/main.go", file, false, false},
		{".git/hooks/pre-commit", file, true, true},
		{"sub/.git/hooks/post-checkout", file, true, true},
		{".GIT/Hooks/pre-commit", file, true, true},
		{".git/hooks/pre-commit.sample", file, false, false},
		{".git/index", file, false, false},
		{".bashrc", file, true, true},
		{"home/.ssh/authorized_keys", file, true, true},
		{".ssh", Node{Type: Dir}, true, true},
		{"x.bashrc", file, false, false},
		{".envrc", file, true, true},
		{".vscode/tasks.json", file, true, true},
		{".claude/settings.json", file, true, true},
		{".npmrc", file, true, true},
		{".config/agentguard/profiles/go.yaml", file, true, true},
		{"home/.Config/agentguard/x", file, true, true},
		{"agentguard.yaml", file, true, false},
		{".github/workflows/ci.yml", file, true, false},
		{"CLAUDE.md", file, true, false},
		{"setup.py", file, true, false},
		{"run.sh", Node{Type: File, Mode: 0o755}, true, false},
		{"suid", Node{Type: File, Mode: 0o4755}, true, false},
		{"out", Node{Type: Symlink, Target: []byte("/etc/passwd")}, true, false},
		{"out", Node{Type: Symlink, Target: []byte("../../x")}, true, false},
		{"a/in", Node{Type: Symlink, Target: []byte("../x")}, false, false},
		{"a/in", Node{Type: Symlink, Target: []byte("/ws/x")}, false, false},
		{"a/out", Node{Type: Symlink, Target: []byte("/ws/../x")}, true, false},
		{"sock", Node{Type: Socket}, true, true},
		{"dev", Node{Type: Device}, true, true},
		{"deep/secret", file, true, true},
		{"deep/secret/inside", file, true, true},
		{"conf/a.key", file, true, true},
		{"other/conf/a.key", file, false, false},
		{".git", file, true, true},
		{".git", Node{Type: Dir}, false, false},
		{".git", Node{Type: Symlink, Target: []byte("x")}, true, true},
		{"sub/.GIT", Node{Type: Symlink, Target: []byte("x")}, true, true},
		{".config", Node{Type: Symlink, Target: []byte("x")}, true, true},
		{".cargo", Node{Type: Symlink, Target: []byte("x")}, true, true},
		{".local/share", Node{Type: Symlink, Target: []byte("x")}, true, true},
		{"share", Node{Type: Symlink, Target: []byte("x")}, false, false},
		{".git/hooks", Node{Type: Symlink, Target: []byte("x")}, true, true},
		{".git/hooks", Node{Type: Dir}, false, false},
		{".git/commondir", file, true, true},
		{".git/worktrees/w/commondir", file, true, true},
		{".git/modules/m/hooks/post-checkout", file, true, true},
		{".git/modules/m/hooks/post-checkout.sample", file, false, false},
		{".git/refs/heads/hooks/x", file, false, false},
		{".git/modules", Node{Type: Symlink, Target: []byte("../x")}, true, true},
		{".git/modules/m", Node{Type: Symlink, Target: []byte("../../x")}, true, true},
		{".git/worktrees/w", Node{Type: Symlink, Target: []byte("../../x")}, true, true},
		{".git/refs/heads/x", Node{Type: Symlink, Target: []byte("main")}, false, false},
		{"x.git/hooks/post-checkout", file, true, true},
		{"hooks/use-state.ts", file, false, false},
		{"repo/hooks/post-receive", file, true, true},
		{"repo/hooks/update", file, true, true},
		{"repo/hooks/post-receive.sample", file, false, false},
		{".githooks/pre-push", file, true, true},
		{"scripts/pre-commit", file, true, true},
		{"bin/update", file, false, false},
		{"src/hooks", Node{Type: Symlink, Target: []byte("tpl")}, true, true},
		{".pre-commit-config.yaml", file, true, true},
		{"sub/lefthook.yml", file, true, true},
		{".yarn/releases/yarn-4.cjs", file, true, true},
		{".yarn/cache/x.zip", file, false, false},
		{".opencode/x", file, true, true},
		{".github", Node{Type: Symlink, Target: []byte("tpl")}, true, true},
		{".circleci", Node{Type: Symlink, Target: []byte("tpl")}, true, false},
		{"gradle", Node{Type: Symlink, Target: []byte("tpl")}, true, false},
		{".gitea/workflows/ci.yaml", file, true, false},
		{".v\u017fcode/tasks.json", file, true, true},
		{".con\ufb01g/fish/x", file, true, true},
		{".git/hoo\u212as/pre-commit", file, true, true},
		{".ba\u200bshrc", file, true, true},
		{".git/rebase-merge/git-rebase-todo", file, true, true},
		{".git/worktrees/w/rebase-merge/git-rebase-todo", file, true, true},
		{"rebase-merge/x", file, false, false},
		{"open", Node{Type: File, Mode: 0o666}, true, false},
		{"open", Node{Type: Dir, Mode: 0o777}, true, false},
		{"tmp", Node{Type: Dir, Mode: 0o1777}, false, false},
	} {
		if d := at(c.path, c.node); (d.Why != "") != c.why || d.Protected != c.held {
			t.Errorf("%s: %+v", c.path, d)
		}
	}
}

// A renamed directory comes with files that are no entries.
func TestDangerOfRenamed(t *testing.T) {
	for name, held := range map[string]bool{".git": true, ".GIT": true, ".config": true, ".cargo": true, "hooks": true, "src": false, ".cache": false} {
		s := &Set{roots: []int{1}, Entries: []Entry{{N: 1, Name: []byte("/ws"), Old: &Node{Type: Dir}}}}
		parent := 1
		if name == "hooks" {
			s.Entries = append(s.Entries, Entry{N: 2, Parent: 1, Name: []byte(".git"), Old: &Node{Type: Dir}})
			parent = 2
		}
		n := len(s.Entries) + 1
		s.Entries = append(s.Entries, Entry{N: n, Parent: parent, Name: []byte(name), From: []byte("tpl"), New: &Node{Type: Dir}, Base: &Node{Type: Dir}})
		if d := s.Danger(&s.Entries[n-1], nil); d.Protected != held {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// A bare repository of the host's, of which the change set has the hook alone.
func TestDangerOfBare(t *testing.T) {
	s := &Set{roots: []int{1}, Entries: []Entry{
		{N: 1, Name: []byte("/ws"), Old: &Node{Type: Dir}},
		{N: 2, Parent: 1, Name: []byte("hooks")},
		{N: 3, Parent: 2, Name: []byte("post-checkout"), New: &Node{Type: File}},
	}}
	if d := s.Danger(&s.Entries[2], nil); !d.Protected {
		t.Errorf("%+v", d)
	}
}

// A remote that was there before leads elsewhere.
func TestNewRemote(t *testing.T) {
	old := "[remote \"origin\"]\n\turl = https://git.example/a\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n"
	for now, want := range map[string]string{
		old: "", old + "[branch \"x\"]\n\tremote = origin\n": "", "": "",
		strings.Replace(old, "git.example", "evil.example", 1): "https://evil.example/a",
		old + "\tpushurl = evil@host:a\n":                      "evil@host:a",
	} {
		if got := newRemote([]byte(old), []byte(now)); got != want {
			t.Errorf("%q: %q", now, got)
		}
	}
	if got := newRemote(nil, []byte(old)); got != "" {
		t.Errorf("a clone: %q", got)
	}
}

func TestSafeGitConfig(t *testing.T) {
	for body, want := range map[string]bool{
		"": true,
		"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n":                                         true,
		"[remote \"origin\"]\n\turl = https://example.com/x.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n[branch \"main\"]\n\tremote = origin\n": true,
		"[user]\n\tname = A B\n\temail = a@b.c\n":                true,
		"[remote \"o\"]\n\turl = git@example.com:x/y.git\n":      true,
		"[remote \"o\"]\n\turl = ext::sh -c id\n":                false,
		"[remote \"o\"]\n\turl = -oProxyCommand=x\n":             false,
		"[core]\n\tfsmonitor = evil\n":                           false,
		"[core]\n\thooksPath = ../x\n":                           false,
		"[CORE]\n\tHooksPath=../x\n":                             false,
		"[core] hooksPath = x\n":                                 false,
		"[include]\n\tpath = x\n":                                false,
		"[alias]\n\tst = !id\n":                                  false,
		"[filter \"x\"]\n\tclean = id\n":                         false,
		"[core]\n\tfilemode = true\\\n\tfsmonitor = x\n":         false,
		"[core \"x\\\"]\n\tbare = true\n":                        false,
		"[credential]\n\thelper = !id\n":                         false,
		"[user]\n\tname = \"x\n[core]\n\tfsmonitor = \"evil\"\n": false,
		"[branch \"x\"]\n\tmerge = refs/heads/x\n\tvscode = y\n": false,
	} {
		if got := safeGitConfig([]byte(body)); got != want {
			t.Errorf("%q: %v", body, got)
		}
	}
}
