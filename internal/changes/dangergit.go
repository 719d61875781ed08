package changes

import (
	"path"
	"slices"
	"strings"

	"github.com/agentguard/agentguard/trace"
)

// brings reports an entry that puts a tree at its path whose names are no
// entries of their own: a directory that was renamed with what the host has in
// it, or a symbolic link.
func brings(e *Entry) bool {
	return len(e.From) > 0 || e.New != nil && e.New.Type == Symlink
}

// opensTrap reports a directory in which traps lie deeper down, such as .git or .config:
// whatever comes to be there under another name becomes one. held: a protected one.
func opensTrap(p string) (opens, held bool) {
	for i := range traps {
		t := &traps[i]
		for _, names := range [][]string{t.dirs, t.files} {
			for _, n := range names {
				for at := path.Dir(n); !held && at != "."; at = path.Dir(at) {
					if strings.HasSuffix("/"+p, "/"+at) {
						opens, held = true, t.protected
					}
				}
			}
		}
	}
	return opens, held
}

// byGit judges what tells git which programs to run, or where such a thing is
// read (gitrepository-layout(5)). low is the path in lower case.
func (s *Set) byGit(e *Entry, low string) Danger {
	base, dir := path.Base(low), path.Base(path.Dir(low))
	_, rest, in := strings.Cut("/"+low, "/.git/")
	module := in && strings.HasPrefix(rest, "modules/")
	switch {
	case e.New.Type == Dir && !brings(e):
		return Danger{}
	case module && (strings.Contains(rest+"/", "/hooks/") && !strings.HasSuffix(base, ".sample")), isHook(dir, base):
		return Danger{"git runs it", true}
	case brings(e) && strings.Contains(base, "hooks"):
		return Danger{"what comes with it was not judged, and git may run it", true}
	case in && brings(e) && !gitData(rest):
		return Danger{"what comes with it was not judged, and git may run it", true}
	case in && e.New.Shared && !gitData(rest):
		return Danger{"it is a hard link: what is written to its other name is written to it", true}
	case strings.HasPrefix(rest, "rebase-merge/") || strings.HasPrefix(rest, "worktrees/") && dir == "rebase-merge":
		return Danger{"git runs what it names when the rebase goes on", true}
	case base == ".git":
		return Danger{"it tells git where the repository is", true}
	case base == "commondir" && in && !(inWorktrees(rest) && strings.TrimSpace(string(s.content(e.New))) == "../.."):
		return Danger{"it tells git where hooks and configuration are", true}
	case e.New.Type != File:
	case base == "config" || base == "config.worktree":
		b, ok := s.known(e.New)
		if !ok {
			return Danger{"git may run programs that it names, and it cannot be judged", true}
		}
		if in && !safeGitConfig(b) || !in && gitDanger().Match(b) {
			// Outside, git takes any directory with HEAD, objects and refs for a
			// repository: what has sections may be its configuration.
			return Danger{"git runs programs that it names", in || gitAnySection().Match(b)}
		}
		if to := newRemote(s.content(e.Old), b); in && to != "" {
			return Danger{"git fetches from or pushes to another place now: " + trace.Quote(to), false}
		}
	}
	return Danger{}
}

// newRemote returns where only the new one of two configurations has git go, which both are
// safe to read. A first one has no other to compare with.
func newRemote(old, now []byte) string {
	places := func(b []byte) (list []string) {
		for line := range strings.Lines(string(b)) {
			if m := gitKey().FindStringSubmatch(strings.TrimSpace(line)); m != nil && strings.HasSuffix(strings.ToLower(m[1]), "url") {
				list = append(list, m[2])
			}
		}
		return list
	}
	known := places(old)
	for _, p := range places(now) {
		if len(old) > 0 && !slices.Contains(known, p) {
			return p
		}
	}
	return ""
}

var gitAnySection = once(`(?m)^[\s\x{feff}]*\[`)

// gitData reports a path below .git in which git keeps data only.
func gitData(rest string) bool {
	top, _, _ := strings.Cut(rest, "/")
	return top == "refs" || top == "logs" || top == "objects"
}

// inWorktrees reports the commondir that git worktree add writes.
func inWorktrees(rest string) bool {
	ok, err := path.Match("worktrees/*/commondir", rest)
	return ok && err == nil
}

// gitHooks are the names under which git looks for a hook (githooks(5)).
var gitHooks = []string{
	"applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg", "commit-msg", "post-commit", "pre-rebase",
	"post-checkout", "post-merge", "pre-push", "pre-receive", "proc-receive", "post-receive", "post-update", "reference-transaction", "push-to-checkout",
	"pre-auto-gc", "post-rewrite", "sendemail-validate", "fsmonitor-watchman", "p4-changelist", "p4-prepare-changelist", "p4-post-changelist", "p4-pre-submit",
	"post-index-change",
}

// isHook goes by the name alone: whether the directory above is a repository
// without a .git, or core.hooksPath of one of the host's leads here, is not in a
// change set. "update" is a hook only where the directory says so.
func isHook(dir, base string) bool {
	return slices.Contains(gitHooks, base) || base == "update" && strings.Contains(dir, "hook")
}
