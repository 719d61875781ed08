package changes

import (
	"path"
	"strings"
)

// brings reports an entry that puts a tree at its path whose names are no
// entries of their own: a directory that was renamed with what the host has in
// it, or a symbolic link.
func brings(e *Entry) bool {
	return len(e.From) > 0 || e.New != nil && e.New.Type == Symlink
}

// opensTrap reports a directory in which protected traps lie deeper down, such as
// .git or .config: whatever comes to be there under another name becomes one.
func opensTrap(p string) bool {
	for i := range traps {
		t := &traps[i]
		for _, names := range [][]string{t.dirs, t.files} {
			for _, n := range names {
				for at := path.Dir(n); t.protected && at != "."; at = path.Dir(at) {
					if strings.HasSuffix("/"+p, "/"+at) {
						return true
					}
				}
			}
		}
	}
	return false
}

// byGit judges what tells git which programs to run, or where such a thing is
// read (gitrepository-layout(5)). low is the path in lower case.
func (s *Set) byGit(e *Entry, low string) Danger {
	base, dir := path.Base(low), path.Base(path.Dir(low))
	_, rest, in := strings.Cut("/"+low, "/.git/")
	inHooks := dir == "hooks" && !strings.HasSuffix(base, ".sample")
	module := in && strings.HasPrefix(rest, "modules/")
	switch {
	case e.New.Type == Dir && !brings(e):
		return Danger{}
	case module && (strings.Contains(rest+"/", "/hooks/") && !strings.HasSuffix(base, ".sample")), inHooks && s.bare(e):
		return Danger{"git runs it", true}
	case in && brings(e) && !gitData(rest):
		return Danger{"what comes with it was not judged, and git may run it", true}
	case base == ".git":
		return Danger{"it tells git where the repository is", true}
	case base == "commondir" && in && !(inWorktrees(rest) && strings.TrimSpace(string(s.content(e.New))) == "../.."):
		return Danger{"it tells git where hooks and configuration are", true}
	case e.New.Type != File:
	case base == "config" || base == "config.worktree":
		b := s.content(e.New)
		if in && !safeGitConfig(b) || !in && gitDanger().Match(b) {
			// Outside, git takes any directory with HEAD, objects and refs for a
			// repository: what has sections may be its configuration.
			return Danger{"git runs programs that it names", in || gitAnySection().Match(b)}
		}
	}
	return Danger{}
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

// bare reports a file of a directory whose parent is a repository without a
// .git: by its name, or because the run made the HEAD in it.
func (s *Set) bare(e *Entry) bool {
	hooks := s.at(e.Parent)
	if hooks.Root() {
		return false
	}
	top := s.at(hooks.Parent)
	if strings.HasSuffix(strings.ToLower(string(top.Name)), ".git") {
		return true
	}
	for n := top.N; n < len(s.Entries) && s.Entries[n].Parent >= top.N; n++ {
		if o := &s.Entries[n]; o.Parent == top.N && strings.EqualFold(string(o.Name), "HEAD") && o.New != nil {
			return true
		}
	}
	return false
}
