package profile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/policy"
)

// places has a home in which only some things are.
func places(t *testing.T, exist ...string) *Places {
	t.Helper()
	dir := t.TempDir()
	return &Places{
		Home: "/home/a b", Dir: dir, ReadFile: os.ReadFile,
		ReadDir: func(d string) (names []string, err error) {
			entries, err := os.ReadDir(d)
			for _, e := range entries {
				names = append(names, e.Name())
			}
			return names, err
		},
		Exists: func(p string) bool {
			for _, e := range exist {
				if e == p || e == "*" {
					return true
				}
			}
			return false
		},
	}
}

// TestShipped holds that each shipped profile is a policy, alone and with all
// others, when all of its paths are there and when none is.
func TestShipped(t *testing.T) {
	for _, exist := range []string{"*", "none"} {
		p := places(t, exist)
		all := []*policy.File{policy.Defaults(policy.Context{Cwd: "/w"})}
		for _, name := range p.Names() {
			f, err := p.Find(name)
			if err != nil || f.From != "shipped" || f.About == "" || strings.Contains(f.About, "agentguard") {
				t.Fatalf("%s: %+v, %v", name, f, err)
			}
			file, err := policy.ParseFragment("profile "+name, p.Fit(f))
			if err != nil {
				t.Fatalf("%v\n%s", err, p.Fit(f))
			}
			all = append(all, file)
		}
		merged, err := policy.Merge(all...)
		if err != nil {
			t.Fatal(err)
		}
		if merged.Workspace.Path != "/w" || len(merged.Unsafe) != 0 || len(merged.Allow) != 0 || len(merged.Writable) != 0 {
			t.Errorf("a profile changes what it should not: %+v", merged)
		}
		if got := len(merged.ReadOnly); (exist == "*") != (got > 10) {
			t.Errorf("%s: %d mounts", exist, got)
		}
		for _, m := range merged.ReadOnly {
			if strings.Contains(m.Path, "~") || !strings.HasPrefix(m.Source.String(), "profile ") {
				t.Errorf("%s from %s", m.Path, m.Source)
			}
		}
	}
}

func TestFit(t *testing.T) {
	p := places(t, "/home/a b/.pyenv", "/opt/x")
	got := string(p.Fit(&Profile{Text: "sandbox:\n  filesystem:\n    read_only_mounts:\n      - ~/.pyenv:/p # x\n      - /opt/x\n      - ~/gone\n    cow_mounts:\n      - ~/gone\n\n  env: {set: {A: ~/b, C: d}}\n"}))
	want := "sandbox:\n  filesystem:\n    read_only_mounts:\n      - \"/home/a b/.pyenv:/p\"\n      - \"/opt/x\"\n#      - ~/gone\n    cow_mounts: []\n#      - ~/gone\n\n  env: {set: {A: \"/home/a b/b\", C: d}}\n"
	if got != want {
		t.Errorf("got:\n%s", got)
	}
	p.Home = ""
	if got := string(p.Fit(&Profile{Text: "    cow_mounts:\n      - ~/x\n"})); got != "    cow_mounts: []\n#      - ~/x\n" {
		t.Errorf("without a home:\n%s", got)
	}
}

// Every list loses what is not there, and is a list without it. A protection is kept: the
// path may be made later.
func TestFitLists(t *testing.T) {
	p := places(t, "/opt/x")
	text := "sandbox:\n  filesystem:\n    toolchains: # of the team\n      - /opt/none\n    protect:\n      - ~/later\n      - /opt/later\n      - .envrc\n" +
		"    cow_mounts:\n      # kept\n      - /opt/none\n    read_only_mounts:\n      - \"/opt/y\"\n      - /opt/none\n  network:\n    unix:\n      - /run/none\n    publish:\n    - 8080\n"
	file, err := policy.ParseFragment("profile x", p.Fit(&Profile{Text: text}))
	if err != nil {
		t.Fatalf("%v\n%s", err, p.Fit(&Profile{Text: text}))
	}
	merged, err := policy.Merge(policy.Defaults(policy.Context{Cwd: "/w"}), file)
	if err != nil {
		t.Fatal(err)
	}
	var protects []string
	for _, one := range merged.Protect {
		protects = append(protects, one.Value)
	}
	if got := strings.Join(protects, " "); got != "/home/a b/later /opt/later .envrc" {
		t.Errorf("protected: %s", got)
	}
	if len(merged.Unix)+len(merged.Cow) != 0 || len(merged.ReadOnly) != 1 || len(merged.Publish) != 1 || len(merged.Toolchains) != 1 {
		t.Errorf("%+v", merged)
	}
}

func TestOwn(t *testing.T) {
	p := places(t)
	for name, text := range map[string]string{"go.yaml": "# mine\n", "team.yaml": "x", "Bad.yaml": "x", "note.txt": "x"} {
		if err := os.WriteFile(filepath.Join(p.Dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if names := strings.Join(p.Names(), " "); names != "agent go java node python rust shell team" {
		t.Errorf("names: %s", names)
	}
	if f, err := p.Find("go"); err != nil || f.About != "mine" || f.From != filepath.Join(p.Dir, "go.yaml") {
		t.Errorf("%+v, %v", f, err)
	}
	for _, name := range []string{"none", "../go", "Bad", ""} {
		if _, err := p.Find(name); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
