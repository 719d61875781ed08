package changes

import (
	"io"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/trace"
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
		[]string{".pre-commit-config.yaml", ".pre-commit-config.yml", "lefthook.yml", "lefthook.yaml", ".lefthook.yml", ".lefthook.yaml", "lefthook.toml", "prek.toml", ".overcommit.yml"},
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
		[]string{".vscode", ".idea", ".zed", ".fleet", ".helix", ".devcontainer", ".vim", ".config/vim", ".config/nvim", ".emacs.d", ".config/emacs"},
		[]string{".gdbinit", ".lldbinit", ".vimrc", ".gvimrc", ".exrc", ".nvimrc", ".nvim.lua", ".dir-locals.el", ".dir-locals-2.el", ".emacs", ".devcontainer.json"},
	},
	{
		"an agent acts on it", true,
		[]string{".claude", ".cursor", ".codex", ".gemini", ".continue", ".windsurf", ".roo", ".cline", ".opencode", ".kiro", ".junie", ".amazonq", ".qwen", ".copilot", ".github/hooks"},
		[]string{".mcp.json", ".claude.json", "opencode.json", "opencode.jsonc", ".aider.conf.yml", ".cursorrules", ".windsurfrules", ".clinerules"},
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
		[]string{".gitconfig", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", ".pnpmfile.mjs", ".pypirc", "pip.conf", ".cargo/config", ".cargo/config.toml", ".condarc", ".gemrc", ".bundle/config"},
	},
	{
		"an agent reads it as instructions", false, nil,
		[]string{"agents.md", "claude.md", "gemini.md", ".github/copilot-instructions.md"},
	},
	{
		"CI runs it", false,
		[]string{".github/workflows", ".github/actions", ".gitea/workflows", ".forgejo/workflows", ".builds", ".circleci", ".buildkite", ".gitlab/ci", ".tekton", ".woodpecker"},
		[]string{
			".gitlab-ci.yml", ".build.yml", ".cirrus.yml", ".cirrus.star", "azure-pipelines.yaml", ".woodpecker.yaml", "cloudbuild.yml", "buildspec.yml", ".travis.yml", "azure-pipelines.yml", "jenkinsfile", ".drone.yml", ".woodpecker.yml", "bitbucket-pipelines.yml", "cloudbuild.yaml",
			".appveyor.yml", "appveyor.yml",
		},
	},
	{
		"a build or an interpreter runs it without being told to", false,
		[]string{".mvn", "gradle/wrapper"},
		[]string{"setup.py", "build.rs", "conftest.py", "sitecustomize.py", "usercustomize.py", "binding.gyp", "bunfig.toml", "rust-toolchain.toml", "rust-toolchain", ".pnp.cjs", "directory.build.props", "directory.build.targets", ".bazelrc", "tools/bazel"},
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
	root := s.RootOf(e)
	for _, at := range []string{p, s.OldPath(e), path.Join(string(root.Within), p), path.Join(string(root.Within), s.OldPath(e))} {
		if covered(at, protect) {
			return Danger{"the policy protects it", true}
		}
	}
	if brings(e) && (coversBelow(root, p, protect) || coversBelow(root, string(e.From), protect)) {
		return Danger{"the policy protects it", true}
	}
	if e.New == nil {
		return Danger{}
	}
	if e.New.Type == Device || e.New.Type == Socket {
		return Danger{"it is a " + string(e.New.Type) + ", which is never committed", true}
	}
	low, own := inside(root, p)
	slashed := "/" + low + "/" // once: a path may have 128 KiB, and there are a hundred names to look for
	for i := range traps {
		if t := &traps[i]; t.holds(slashed, own, e.New.Type == Dir && !brings(e)) {
			return Danger{t.why, t.protected}
		}
	}
	if brings(e) {
		if opens, held := opensTrap(low); opens {
			return Danger{"what comes with it was not judged, and other programs act on what lies there", held}
		}
	}
	if d := s.byGit(e, low); d.Why != "" {
		return d
	}
	if d := s.byContent(e, p, low); d.Why != "" {
		return d
	}
	return byAccess(e)
}

// byAccess judges who else can change what is committed.
func byAccess(e *Entry) Danger {
	switch {
	case e.New.Type != File && e.New.Type != Dir:
	case e.New.Shared && e.Old != nil:
		return Danger{"it became a hard link: what is written to its other name is written to it", false}
	case e.New.Mode&0o002 != 0 && e.New.Mode&unix.S_ISVTX == 0 && (e.Old == nil || e.Old.Mode&0o002 == 0) && (e.Base == nil || e.Base.Mode&0o002 == 0):
		return Danger{"every user may write to it", false}
	}
	return Danger{}
}

// folded is a path as a file system reads it that folds names: in lower case, letters that are one
// or more of ASCII in another form as these, and without what shows nothing (Linux: fs/unicode,
// utf8nfdicf; git: utf8.c, next_hfs_char).
func folded(p string) string {
	low := strings.ToLower(p)
	for i := range len(low) {
		if low[i] >= utf8.RuneSelf {
			return folder.Replace(low)
		}
	}
	return low
}

var folder = func() *strings.Replacer {
	list := []string{"\u017f", "s", "\ufb00", "ff", "\ufb01", "fi", "\ufb02", "fl", "\ufb03", "ffi", "\ufb04", "ffl", "\ufb05", "st", "\ufb06", "st", "\u00ad", "", "\u034f", "", "\ufeff", ""}
	for _, invisible := range [][2]rune{{0x200b, 0x200f}, {0x202a, 0x202e}, {0x2060, 0x206f}, {0xfe00, 0xfe0f}} {
		for r := invisible[0]; r <= invisible[1]; r++ {
			list = append(list, string(r), "")
		}
	}
	return strings.NewReplacer(list...)
}()

// holds reports a path, in slashes on both sides, that the trap names, with its end at own or
// later. dir is a directory whose content is judged by itself.
func (t *trap) holds(slashed string, own int, dir bool) bool {
	for _, d := range t.dirs {
		in := "/" + d + "/"
		if strings.Contains(slashed, in) && strings.LastIndex(slashed, in)+len(in) >= own { // the first is much faster
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

// coversBelow reports a directory in which a pattern names something: what is renamed with
// it, or comes to be there, is no entry.
func coversBelow(root *Entry, dir string, patterns []string) bool {
	if dir == "" {
		return false
	}
	for _, pat := range patterns {
		for at := path.Dir(strings.Trim(pat, "/")); at != "."; at = path.Dir(at) {
			for _, d := range []string{dir, path.Join(string(root.Within), dir)} {
				if ok, err := path.Match(at, d); err == nil && ok {
					return true
				}
			}
		}
	}
	return false
}

// inside is a path as other programs see it, who know of no trees: that of the tree in the one
// that it was mounted in comes first, and before that the last names of the way to it. From own on it
// is what was granted: that all of it lies in a directory of the list is nothing to hold back.
func inside(root *Entry, p string) (all string, own int) {
	const names = 3 // more than a trap has
	top := string(root.Name)
	if w := "/" + string(root.Within); w != "/" && strings.HasSuffix(top, w) {
		top, p = strings.TrimSuffix(top, w), w[1:]+"/"+p
	}
	parts := strings.Split(strings.Trim(top, "/"), "/")
	before := folded(strings.Join(parts[max(len(parts)-names, 0):], "/"))
	return before + "/" + folded(p), len(before) + 2 // with the slashes of holds
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
		if b, ok := s.known(e.New); !ok || !reflect.DeepEqual(scripts(s.content(e.Old)), scripts(b)) {
			return Danger{"its scripts were changed", false}
		}
	case slices.Contains(lockFiles, base):
		b, ok := s.known(e.New)
		if !ok {
			return Danger{"it is too large to say where packages come from", false}
		}
		if h := newHost(s.content(e.Old), b); h != "" {
			return Danger{"packages come from " + trace.Quote(h) + " now", false}
		}
	case strings.HasSuffix(base, ".pth"):
		return Danger{"Python runs it when it starts", false}
	}
	if e.New.Mode&0o111 != 0 && (e.Old == nil || e.Old.Type != File || e.Old.Mode&0o111 == 0) {
		return Danger{"it is a new executable", false}
	}
	return Danger{}
}

// judged bounds what is read of a content to judge it, in bytes.
const judged = 16 << 20

// known is what a node holds. ok is false of a file that is too large, or was not kept: nobody can say
// that it is harmless.
func (s *Set) known(n *Node) (b []byte, ok bool) {
	if n == nil || n.Type != File {
		return nil, true
	}
	if n.SHA256 == "" || n.Size > judged {
		return nil, false
	}
	f, err := s.Blob(n.SHA256)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	b, err = io.ReadAll(io.LimitReader(f, judged+1))
	return b, err == nil && len(b) <= judged
}

// content is what known returns, or nil.
func (s *Set) content(n *Node) []byte {
	b, ok := s.known(n)
	if !ok {
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
