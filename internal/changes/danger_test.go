package changes

import "testing"

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
	} {
		if d := at(c.path, c.node); (d.Why != "") != c.why || d.Protected != c.held {
			t.Errorf("%s: %+v", c.path, d)
		}
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
