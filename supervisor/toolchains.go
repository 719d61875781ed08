package supervisor

import (
	"errors"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/agentguard/agentguard/internal/toolchain"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"
)

// findings are what toolchains and caches add to the command's environment.
type findings struct {
	first []string          // directories that come first in PATH: those that were named
	moved map[string]string // directories of PATH that are shown under another name
	env   []string          // NAME=VALUE
}

// addFound grants the toolchains of the caller's PATH and the caches that the
// policy asks for. What is not named by its path is never refused: a part of it
// that may not be shown is left out.
func (g *grants) addFound(p *policy.Policy, c Caller, environ []string) error {
	env := func(name string) string { return lookupEnv(environ, name) }
	home := c.Home(env)
	return errors.Join(g.addToolchains(p, home, env), g.addCaches(p, home, env))
}

func (g *grants) addToolchains(p *policy.Policy, home string, env func(string) string) error {
	src, auto := p.AutoToolchains()
	dirs := p.ToolchainDirs()
	if !auto && len(dirs) == 0 {
		return nil
	}
	s := g.search(home, env)
	var named []policy.Text
	for _, d := range dirs {
		for _, bin := range programsOf(d.Value) {
			named = append(named, policy.Text{Value: bin, Source: d.Source})
			s.Path = append(s.Path, bin)
		}
	}
	g.found.first = slices.Clone(s.Path)
	if auto {
		s.Path = append(s.Path, strings.Split(env("PATH"), ":")...)
		s.Near = g.environments()
	}
	found := toolchain.Find(s)
	g.found.moved = found.Path
	g.found.env = append(g.found.env, found.Env...)
	var errs []error
	for _, i := range found.Installs {
		from := slices.IndexFunc(named, func(t policy.Text) bool { return t.Value == i.From })
		at := src
		if from >= 0 {
			at = named[from].Source
		}
		errs = append(errs, g.addInstall(p, i, at, from < 0))
	}
	for _, t := range named {
		errs = append(errs, g.shown(t, found.Path))
	}
	return errors.Join(errs...)
}

// programsOf are the directories of programs of a toolchain that was named by
// its own directory; of any other, the directory itself.
func programsOf(dir string) []string {
	var out []string
	for _, name := range []string{"shims", "bin"} {
		if st, err := os.Stat(path.Join(dir, name)); err == nil && st.IsDir() {
			out = append(out, path.Join(dir, name))
		}
	}
	if len(out) == 0 {
		return []string{dir}
	}
	return out
}

// search says what is known before the search: what every run sees, what this
// one is granted, and where runs may have left links.
func (g *grants) search(home string, env func(string) string) toolchain.Search {
	var shown, staged []string
	for i := range g.entries {
		e := &g.entries[i]
		if !e.shows() {
			continue
		}
		real := heldPath(e.open.File)
		if e.At == e.From && e.At == real {
			shown = append(shown, real)
		}
		if e.Access == "rw" {
			staged = append(staged, real)
		}
	}
	below := func(list []string) func(string) bool {
		return func(p string) bool { return slices.ContainsFunc(list, func(dir string) bool { return within(p, dir) }) }
	}
	return toolchain.Search{
		Home: home, Env: env, System: below(systemPaths), Shown: below(shown), Staged: below(staged),
		Broad: func(p string) bool {
			return p == "/" || policy.BroadMount(p, false) != "" || below([]string{"/etc", "/proc", "/sys", "/dev", "/run"})(p) || len(split(p)) < 2 && !strings.HasPrefix(p, "/nix")
		},
	}
}

// heldPath is where a path that is held by descriptor lies, without links.
func heldPath(f *os.File) string {
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return ""
	}
	return real
}

// environments are the usual places of a virtual environment in the workspace:
// its interpreter is a link to a toolchain.
func (g *grants) environments() []string {
	if g.dir == Home {
		return nil
	}
	return []string{path.Join(g.dir, ".venv/bin"), path.Join(g.dir, "venv/bin")}
}

// addInstall grants one install and notes its credential files.
func (g *grants) addInstall(p *policy.Policy, i toolchain.Install, src policy.Source, found bool) error {
	if !belowRoots(i.Dir, p.ToolchainRoots) {
		if found {
			return nil
		}
		return above("the toolchain "+trace.Quote(i.Dir), clauseText(clauseToolchains, src), "filesystem.read_only_mounts")
	}
	if found && len(g.secrets)+len(i.Secrets) > maxMasks/2 {
		return nil // each is a mount, and a default must not use them up
	}
	m := policy.Mount{Path: i.Dir, At: i.Dir, Source: src}
	if err := g.add(m, clauseToolchains, "--toolchains", "ro"); err != nil {
		if found { // not the caller's to open, or nothing that can be shown
			return nil
		}
		return err
	}
	e := &g.entries[len(g.entries)-1]
	e.led, e.found = i.From, found
	for _, rel := range i.Secrets {
		g.secrets = append(g.secrets, hostSocket{path: path.Join(i.Dir, rel), in: devIno{e.Dev, e.Ino}, rel: rel})
	}
	return nil
}

// shown refuses a toolchain that was named and would not be seen.
func (g *grants) shown(t policy.Text, moved map[string]string) error {
	real := t.Value
	if m := moved[path.Clean(real)]; m != "" {
		real = m
	}
	s := g.search("", func(string) string { return "" })
	if s.System(real) || s.Shown(real) {
		return nil
	}
	r := &Refusal{What: "no toolchain can be shown at " + trace.Quote(t.Value), Clause: clauseText(clauseToolchains, t.Source), Remedy: "name a directory of programs, or its install"}
	if _, err := os.Stat(t.Value); err != nil {
		r.Err = errors.Unwrap(err)
	} else if s.Broad(real) {
		r.Remedy = "it holds much else; name a directory in it"
	}
	return r
}

// addCaches grants the caches that the policy names, copy-on-write.
func (g *grants) addCaches(p *policy.Policy, home string, env func(string) string) error {
	src, auto := p.AutoCaches()
	sources := map[string]policy.Source{}
	for _, t := range p.NamedCaches() {
		sources[t.Value] = t.Source
	}
	names := sortedKeys(sources)
	if auto {
		names = nil // all
	} else if len(names) == 0 {
		return nil
	}
	var errs []error
	for _, c := range toolchain.Caches(names, home, Home, env) {
		at, named := sources[c.Name]
		if !named {
			at = src
		}
		err := g.addCache(p, c, at)
		if err == nil {
			g.found.env = append(g.found.env, c.Env...)
		} else if named {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (g *grants) addCache(p *policy.Policy, c toolchain.Cache, src policy.Source) error {
	clause := clauseText(clauseCaches, src)
	if why := policy.BroadMount(c.Dir, false); why != "" {
		return &Refusal{What: "the cache " + c.Name + " is at " + trace.Quote(c.Dir) + ", which " + why, Clause: clause, Remedy: "set its variable to a directory of its own"}
	}
	if !belowRoots(c.Dir, p.CacheRoots) {
		return above("the cache "+trace.Quote(c.Dir), clause, "filesystem.cow_mounts")
	}
	if slices.ContainsFunc(g.entries, func(e Entry) bool { return e.At == c.At }) {
		return nil // granted by its path as well, which says more
	}
	if err := g.add(policy.Mount{Path: c.Dir, At: c.At, Source: src}, clauseCaches, "--cache", "cow"); err != nil {
		return err
	}
	g.entries[len(g.entries)-1].Cache = c.Name
	return nil
}

// belowRoots reports whether a ceiling lets a path be shown; nil bounds nothing.
func belowRoots(p string, roots []string) bool {
	return roots == nil || slices.ContainsFunc(roots, func(r string) bool { return within(p, r) })
}

func above(what, clause, key string) error {
	return &Refusal{What: what + " is above the ceiling", Clause: clause, Remedy: key + " of " + policy.CeilingFile + " does not allow it"}
}

// keepFound takes out the found toolchains that may not be shown here.
func (g *grants) keepFound(check func([]Entry) error) error {
	var errs []error
	g.entries = slices.DeleteFunc(g.entries, func(e Entry) bool {
		var refused *Refusal
		if !e.found || !errors.As(check([]Entry{e}), &refused) {
			return false
		}
		errs = append(errs, e.open.File.Close())
		return true
	})
	return errors.Join(errs...)
}

// Found lists the toolchains and caches that a run under this policy would see,
// as clauses of their keys: what "auto" comes to here. Other grants are not
// judged.
func Found(p *policy.Policy, c Caller, environ []string) []policy.Clause {
	g, _ := openGrants(p, c, environ) // what exec would refuse is exec's to say
	var out []policy.Clause
	for i := range g.entries {
		e := &g.entries[i]
		switch {
		case e.found:
			out = append(out, policy.Clause{Key: clauseToolchains, Value: trace.Quote(e.From) + " for " + trace.Quote(e.led), Source: e.Source})
		case e.Cache != "":
			out = append(out, policy.Clause{Key: clauseCaches, Value: e.Cache + " " + trace.Quote(e.From), Source: e.Source})
		}
		_ = e.open.File.Close() // read only
	}
	return out
}
