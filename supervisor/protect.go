package supervisor

import (
	"errors"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"
)

// Where a directory of the host is written in place, nobody looks at a change
// before other programs act on it. The directories of the kind that exist are
// therefore read-only, unless they are granted themselves. What a mount cannot
// hold, because it is a file that is replaced or is not there yet, is compared
// when the run has ended, and reported.
var (
	guardedDirs = []string{
		".git/hooks", ".husky", ".vscode", ".idea", ".zed", ".fleet", ".helix", ".devcontainer", ".vim", ".claude", ".cursor", ".codex", ".gemini", ".continue",
		".windsurf", ".roo", ".cline", ".opencode", ".kiro", ".junie", ".amazonq", ".ssh", ".gnupg", ".config/fish", ".config/git", ".config/nvim", ".config/systemd", ".config/autostart", ".config/agentguard", ".local/state/agentguard", ".aws", ".kube",
		".cargo/bin", ".yarn/releases", ".yarn/plugins", ".yarn/sdks", ".githooks", ".config/vim", ".emacs.d", ".config/emacs", ".qwen", ".copilot", ".github/hooks",
	}
	guardedFiles = []string{
		".git/config", ".git/commondir", ".envrc", ".bashrc", ".bash_profile", ".profile", ".zshrc", ".zshenv", ".gitconfig", ".npmrc", ".mcp.json", ".vimrc", ".exrc", ".netrc", ".gdbinit", ".lldbinit",
		".pre-commit-config.yaml", "lefthook.yml", "opencode.json", "opencode.jsonc", ".claude.json", ".gvimrc", ".dir-locals.el", ".dir-locals-2.el",
	}
)

const clauseProtect = "filesystem.protect"

// guarded is a path that is compared after the run.
type guarded struct {
	outer  *Opened
	from   string // the host's path of outer, for people
	rel    string
	before unix.Stat_t // zero: it was not there
}

// protect guards the known paths, and those of the policy, in every directory
// that is written in place.
func (g *grants) protect(list []policy.Text) error {
	for i := range len(g.entries) {
		e := g.entries[i]
		if !e.inPlace() {
			continue
		}
		for _, rel := range guardedDirs {
			if err := g.guard(&e, rel, clauseText(clauseProtect, policy.Source{})); err != nil {
				return err
			}
		}
		for _, rel := range guardedFiles {
			g.watch(&e, rel)
		}
		for _, t := range list {
			if err := g.guard(&e, strings.Trim(t.Value, "/"), clauseText(clauseProtect, t.Source)); err != nil {
				return err
			}
		}
	}
	return nil
}

// guard makes one path read-only, or has it compared afterwards.
func (g *grants) guard(outer *Entry, rel, clause string) error {
	at := path.Join(outer.At, rel)
	for i := range g.entries {
		if e := &g.entries[i]; within(at, e.At) && len(e.At) > len(outer.At) || within(e.At, at) {
			return nil // granted by itself, or in part
		}
	}
	fd, err := openInside(outer.open.File, rel)
	if err != nil {
		g.watch(outer, rel)
		return nil
	}
	o := Opened{File: os.NewFile(uintptr(fd), at), Path: path.Join(outer.From, rel)}
	if err := unix.Fstat(fd, &o.Stat); err != nil {
		return errors.Join(err, o.File.Close())
	}
	if kind := o.Stat.Mode & unix.S_IFMT; kind != unix.S_IFDIR && kind != unix.S_IFREG {
		g.watch(outer, rel)
		return o.File.Close()
	}
	g.entries = append(g.entries, Entry{
		Op: "bind", At: at, From: o.Path, Access: "ro", Dev: o.Stat.Dev, Ino: o.Stat.Ino, Clause: clause, Source: outer.Source, open: &o, guard: true,
	})
	return nil
}

func openInside(dir *os.File, rel string) (int, error) {
	return unix.Openat2(int(dir.Fd()), rel, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// watch notes how a path is before the run.
func (g *grants) watch(outer *Entry, rel string) {
	w := guarded{outer: outer.open, from: outer.From, rel: rel}
	w.before, _ = w.now()
	g.guarded = append(g.guarded, w)
}

// now describes the path; zero when it is not there. A link or a file in the
// place of one of its directories leads elsewhere: then at is that one.
func (w *guarded) now() (st unix.Stat_t, at string) {
	for at = w.rel; at != "."; at = path.Dir(at) {
		fd, err := openInside(w.outer.File, at)
		if err == nil {
			err = unix.Fstat(fd, &st)
			unix.Close(fd)
		}
		if err == nil {
			return st, at
		}
		if err != unix.ELOOP && err != unix.ENOTDIR {
			break
		}
	}
	return unix.Stat_t{}, w.rel
}

// planted lists the guarded paths that are not as they were.
func (g *grants) planted() []string {
	var out []string
	left := maxCompared
	for i := range g.trees {
		out = append(out, g.trees[i].planted(&left)...)
	}
	for i := range g.guarded {
		w := &g.guarded[i]
		now, at := w.now()
		said := trace.Quote(path.Join(w.from, at))
		switch {
		case w.before.Ino == 0 && now.Ino != 0:
			said += " was made"
		case w.before.Ino != now.Ino || w.before.Ctim != now.Ctim:
			said += " was changed"
		default:
			continue
		}
		if !slices.Contains(out, said) {
			out = append(out, said)
		}
	}
	return out
}
