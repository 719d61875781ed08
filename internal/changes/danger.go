package changes

import (
	"bytes"
	"encoding/json"
	"io"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Danger is why a change should be read before anything else.
type Danger struct {
	Why       string
	Protected bool // held back by commit unless asked for
}

// trap is a kind of path that other programs act on without being asked.
type trap struct {
	why       string
	protected bool
	dirs      []string // everything below a directory of this name (or names, with slashes)
	files     []string // files of this name, or a path's end with slashes
}

// traps are looked through in order. Names are compared in lower case: some
// file systems fold it, and a trap that only looks like one is worth a look.
var traps = []trap{
	{
		"git runs it", true,
		[]string{".git/hooks", ".husky"},
		[]string{".pre-commit-config.yaml", ".pre-commit-config.yml", "lefthook.yml", "lefthook.yaml", ".lefthook.yml", ".lefthook.yaml", "lefthook.toml"},
	},
	{
		"a shell reads it when it starts", true,
		[]string{".config/fish"},
		[]string{
			".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout",
			".kshrc", ".cshrc", ".tcshrc", ".login", ".inputrc", ".xinitrc", ".xsession", ".xprofile", ".pam_environment", ".envrc",
		},
	},
	{
		"an editor acts on it", true,
		[]string{".vscode", ".idea", ".zed", ".fleet", ".helix", ".devcontainer", ".vim", ".config/nvim"},
		[]string{".gdbinit", ".lldbinit", ".vimrc", ".exrc", ".nvimrc", ".nvim.lua", ".dir-locals.el", ".emacs", ".devcontainer.json"},
	},
	{
		"an agent acts on it", true,
		[]string{".claude", ".cursor", ".codex", ".gemini", ".continue", ".windsurf", ".roo", ".cline", ".opencode", ".kiro", ".junie", ".amazonq"},
		[]string{".mcp.json", "opencode.json", ".aider.conf.yml", ".cursorrules", ".windsurfrules", ".clinerules"},
	},
	{
		"it decides who may log in, or starts by itself", true,
		[]string{".ssh", ".gnupg", ".config/systemd", ".config/autostart", ".local/share/systemd", ".kube", ".aws"},
		[]string{".netrc", ".docker/config.json"},
	},
	{
		"agentguard takes what it grants from it", true,
		[]string{".config/agentguard", ".local/state/agentguard"},
		nil,
	},
	{
		"a tool takes programs or sources from it", true,
		[]string{".config/git", ".config/pip", ".cargo/bin", ".yarn/releases", ".yarn/plugins", ".yarn/sdks"},
		[]string{".gitconfig", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", ".pypirc", "pip.conf", ".cargo/config", ".cargo/config.toml", ".condarc", ".gemrc", ".bundle/config"},
	},
	{
		"an agent reads it as instructions", false, nil,
		[]string{"agents.md", "claude.md", "gemini.md", ".github/copilot-instructions.md"},
	},
	{
		"CI runs it", false,
		[]string{".github/workflows", ".github/actions", ".circleci", ".buildkite", ".gitlab/ci", ".tekton", ".woodpecker"},
		[]string{
			".gitlab-ci.yml", ".travis.yml", "azure-pipelines.yml", "jenkinsfile", ".drone.yml", ".woodpecker.yml", "bitbucket-pipelines.yml", "cloudbuild.yaml",
			".appveyor.yml", "appveyor.yml",
		},
	},
	{
		"a build or an interpreter runs it without being told to", false,
		[]string{".mvn", "gradle/wrapper"},
		[]string{"setup.py", "build.rs", "conftest.py", "sitecustomize.py", "usercustomize.py", "binding.gyp", ".bazelrc", "tools/bazel"},
	},
	{"agentguard may take what it grants from it", false, nil, []string{"agentguard.yaml"}},
	{"git takes objects or attributes from it", false, nil, []string{".git/objects/info/alternates", ".git/info/attributes", ".gitmodules"}},
}

// Danger classifies an entry; protect are paths and names of the policy, in
// path.Match's syntax. An empty Why is an ordinary change.
func (s *Set) Danger(e *Entry, protect []string) Danger {
	if e.Op() == None || e.Root() {
		return Danger{}
	}
	p := s.Path(e)
	if e.New == nil {
		p = s.OldPath(e)
	}
	if strings.HasPrefix(p, cut+"/") {
		return Danger{"it lies too deep for its path to be judged", true}
	}
	if covered(p, protect) {
		return Danger{"the policy protects it", true}
	}
	if e.New == nil {
		return Danger{}
	}
	if e.New.Type == Device || e.New.Type == Socket {
		return Danger{"it is a " + string(e.New.Type) + ", which is never committed", true}
	}
	low := strings.ToLower(p)
	slashed := "/" + low + "/" // once: a path may have 128 KiB, and there are a hundred names to look for
	for i := range traps {
		if t := &traps[i]; t.holds(slashed, e.New.Type == Dir && !brings(e)) {
			return Danger{t.why, t.protected}
		}
	}
	if brings(e) && opensTrap(low) {
		return Danger{"what comes with it was not judged, and other programs act on what lies there", true}
	}
	if d := s.byGit(e, low); d.Why != "" {
		return d
	}
	return s.byContent(e, p, low)
}

// holds reports a path, in slashes on both sides, that the trap names. dir is a directory
// whose content is judged by itself.
func (t *trap) holds(slashed string, dir bool) bool {
	for _, d := range t.dirs {
		if strings.Contains(slashed, "/"+d+"/") {
			return !(d == ".git/hooks" && (strings.HasSuffix(slashed, ".sample/") || dir)) // git never runs samples
		}
	}
	return slices.ContainsFunc(t.files, func(f string) bool { return strings.HasSuffix(slashed, "/"+f+"/") })
}

// covered reports a path that a pattern names: the path from the top, one of
// its parents, or, for a pattern without a slash, any component.
func covered(p string, patterns []string) bool {
	for _, pat := range patterns {
		pat = strings.Trim(pat, "/")
		for at := p; at != "" && at != "."; {
			slash := strings.LastIndexByte(at, '/') // path.Dir would look at all of it each time
			name := at
			if !strings.Contains(pat, "/") {
				name = at[slash+1:]
			}
			if ok, err := path.Match(pat, name); err == nil && ok {
				return true
			}
			at = at[:max(slash, 0)]
		}
	}
	return false
}

// byContent judges what a name alone does not tell.
func (s *Set) byContent(e *Entry, p, low string) Danger {
	base := path.Base(low)
	switch {
	case e.New.Type == Symlink:
		if s.leaves(e, p) {
			return Danger{"the link leads out of the tree", false}
		}
		return Danger{}
	case e.New.Type != File:
		return Danger{}
	case e.New.Mode&(unix.S_ISUID|unix.S_ISGID) != 0:
		return Danger{"it has set-id bits, which are never committed", false}
	case base == "package.json":
		if !reflect.DeepEqual(scripts(s.content(e.Old)), scripts(s.content(e.New))) {
			return Danger{"its scripts were changed", false}
		}
	case slices.Contains(lockFiles, base):
		if h := newHost(s.content(e.Old), s.content(e.New)); h != "" {
			return Danger{"packages come from " + h + " now", false}
		}
	case strings.HasSuffix(base, ".pth"):
		return Danger{"Python runs it when it starts", false}
	}
	if e.New.Mode&0o111 != 0 && (e.Old == nil || e.Old.Type != File || e.Old.Mode&0o111 == 0) {
		return Danger{"it is a new executable", false}
	}
	return Danger{}
}

// content reads a node's content where it is kept and small; nil otherwise.
func (s *Set) content(n *Node) []byte {
	const most = 16 << 20
	if n == nil || n.Type != File || n.SHA256 == "" || n.Size > most {
		return nil
	}
	f, err := s.Blob(n.SHA256)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return nil
	}
	return b
}

// leaves judges a symbolic link by its text: it leads out of the tree when it is
// absolute and not below the tree's own place, or climbs above the top.
func (s *Set) leaves(e *Entry, p string) bool {
	target := string(e.New.Target)
	if path.IsAbs(target) {
		root := string(s.RootOf(e).Name)
		return target != root && !strings.HasPrefix(path.Clean(target), root+"/")
	}
	at := path.Join("/top", path.Dir(p))
	return !strings.HasPrefix(path.Join(at, target)+"/", "/top/")
}

// once compiles an expression when it is first used: a start that changes nothing
// would pay for it.
func once(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// gitDanger are the keys by which git runs programs or reads other configuration.
var gitDanger = once(`(?i)(fsmonitor|hookspath|sshcommand|askpass|pager|editor|gitproxy|textconv|\bprocess\b|\bclean\b|\bsmudge\b|\bdriver\b|\bcommand\b|\bcmd\b|\bhelper\b|\bprogram\b|\bpath\b|include|alias|ext::|uploadpack|receivepack)`)

// gitSafe are the only keys that a repository's configuration may have without
// being called dangerous: what git itself writes on init, clone, branch and remote.
var gitSafe = once(`^(core\.(repositoryformatversion|filemode|bare|logallrefupdates|symlinks|ignorecase|precomposeunicode|autocrlf|eol)|extensions\.(objectformat|refstorage)|remote\..*\.(url|fetch|pushurl|mirror)|branch\..*\.(remote|merge|rebase)|user\.(name|email)|init\.defaultbranch|pull\.(rebase|ff)|push\.(default|autosetupremote)|submodule\..*\.(url|active)|merge\.conflictstyle|gc\.auto|advice\..*)$`)

var (
	gitSection = once(`^\[([A-Za-z0-9.-]+)(?:[ \t]+"([^"\\]*)")?\]$`)
	gitKey     = once(`^([A-Za-z][A-Za-z0-9-]*)[ \t]*=[ \t]*([^"\\#;]*)$`)
	gitURL     = once(`^(https?|ssh|git|file)://[^ ]*$|^[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:[^ ]*$|^[./A-Za-z0-9_-][A-Za-z0-9_./@ -]*$`)
)

// safeGitConfig accepts a configuration that is read without doubt and has
// harmless keys only. Anything else is for a person to look at.
func safeGitConfig(b []byte) bool {
	section := ""
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		if m := gitSection().FindStringSubmatch(line); m != nil {
			section = strings.ToLower(m[1]) + "."
			if m[2] != "" {
				section += m[2] + "."
			}
			continue
		}
		m := gitKey().FindStringSubmatch(line)
		if m == nil || !gitSafe().MatchString(section+strings.ToLower(m[1])) {
			return false
		}
		if strings.HasSuffix(strings.ToLower(m[1]), "url") && !gitURL().MatchString(m[2]) {
			return false
		}
	}
	return true
}

// scripts are the parts of a package.json that are run.
func scripts(b []byte) any {
	var p struct {
		Scripts any `json:"scripts"`
		Bin     any `json:"bin"`
		Config  any `json:"config"`
		GypFile any `json:"gypfile"`
	}
	if len(b) > 0 && json.Unmarshal(b, &p) != nil {
		return string(b) // not readable: every change counts
	}
	return p
}

var lockFiles = []string{
	"package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "cargo.lock", "poetry.lock", "uv.lock", "pipfile.lock", "gemfile.lock",
	"composer.lock", "requirements.txt", "bun.lock", "flake.lock",
}

var urlHost = once(`(?:[a-z+]+://|git@)([A-Za-z0-9.-]+)`)

// newHost returns a host that only the new lock file names.
func newHost(old, now []byte) string {
	known := map[string]bool{}
	for _, m := range urlHost().FindAllSubmatch(old, -1) {
		known[string(bytes.ToLower(m[1]))] = true
	}
	if len(known) == 0 {
		return "" // a first lock file, or one without places
	}
	for _, m := range urlHost().FindAllSubmatch(now, -1) {
		if h := string(bytes.ToLower(m[1])); !known[h] {
			return h
		}
	}
	return ""
}
