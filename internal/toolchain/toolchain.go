// Package toolchain finds the toolchains and caches that a user has outside the
// system directories: which directory a program of PATH belongs to, what of it
// must not be seen, and which variables it needs where HOME is another.
//
// It looks with the ids of its caller and changes nothing. What is found is
// opened by others, who judge it again. Why by PATH, and at each launch: decision 0022.
package toolchain

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Install is a directory, or a single program, that belongs to a toolchain.
type Install struct {
	Dir     string   // without symbolic links
	From    string   // the entry of PATH, or the variable, that led to it
	Secrets []string // files below Dir that usually hold credentials, relative
}

// Found is what a search has come to.
type Found struct {
	Installs []Install
	// Path says where a directory of PATH really lies, of those whose name will
	// not be there inside.
	Path map[string]string
	// Env are variables that the toolchains are found by, NAME=VALUE.
	Env []string
}

// Search says what to look for, and what is known of the run.
type Search struct {
	Path []string            // directories of programs, in their order
	Near []string            // directories of programs that are no part of PATH: their links count, they do not
	Home string              // of the caller; "" when there is none
	Env  func(string) string // the caller's variables

	// System reports directories that every run sees, Shown those that this one
	// sees anyway.
	System, Shown func(dir string) bool
	// Staged reports what a run may have put there, now or before: whoever wrote
	// a link in it must not choose what is shown.
	Staged func(dir string) bool
	// Broad reports directories that hold much else besides a toolchain.
	Broad func(dir string) bool
}

// maxInstalls and maxEntries bound a search, which is a part of every launch.
const (
	maxInstalls = 32
	maxEntries  = 2048 // of one directory
)

// search is a Search under way.
type search struct {
	Search
	roots  func() []root
	found  Found
	looked map[string]bool // directories whose links were followed
}

// Find looks through the directories of PATH and what their links lead to.
func Find(s Search) Found {
	if real, err := filepath.EvalSymlinks(s.Home); err == nil && s.Home != "" {
		s.Home = real
	}
	f := &search{Search: s, looked: map[string]bool{}}
	f.roots = sync.OnceValue(func() []root { return rootsOf(s.Home, s.Env) }) // most searches need none
	f.found.Path = map[string]string{}
	for _, dir := range s.Path {
		f.directory(path.Clean(dir))
	}
	for _, dir := range s.Near {
		if real, err := filepath.EvalSymlinks(dir); err == nil && f.inside(real) {
			f.links(real, dir)
		}
	}
	for _, name := range homeVariables {
		f.variable(name)
	}
	for _, r := range known {
		f.variable(r.variable)
	}
	return f.found
}

// homeVariables name the directory of one toolchain; programs of others ask them.
var homeVariables = []string{"JAVA_HOME", "GOROOT", "VIRTUAL_ENV", "CONDA_PREFIX"}

// variable passes the place of a toolchain on, where it is shown.
func (f *search) variable(name string) {
	dir := ""
	if name != "" {
		dir = f.Env(name)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil || !filepath.IsAbs(dir) {
		return
	}
	if !f.inside(real) {
		f.add(f.prefix(path.Join(real, "bin")), name, f.safe(real))
	}
	if f.inside(real) {
		f.setEnv(name, real)
	}
}

// inside reports whether the run sees the path, as far as has been found.
func (f *search) inside(p string) bool {
	return f.System(p) || f.Shown(p) || slices.ContainsFunc(f.found.Installs, func(i Install) bool { return within(p, i.Dir) })
}

// directory takes in one entry of PATH.
func (f *search) directory(dir string) {
	if !filepath.IsAbs(dir) || f.System(dir) && dir != "/usr/local/bin" && dir != "/usr/local/sbin" {
		return // of the system's, only the administrator's own lead to other places
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return
	}
	if !f.inside(real) {
		f.add(f.prefix(real), dir, f.safe(real))
	}
	if real != dir && f.inside(real) {
		f.found.Path[dir] = real
	}
	f.links(real, dir)
}

// links takes in where the programs of a directory really lie: version managers
// and package managers put links in one place to many.
func (f *search) links(real, from string) {
	if f.looked[real] {
		return
	}
	f.looked[real] = true
	for _, e := range readDir(real) {
		if e.Type()&os.ModeSymlink == 0 {
			continue
		}
		target, err := filepath.EvalSymlinks(path.Join(real, e.Name()))
		if err != nil || f.inside(target) || !isProgram(target) {
			continue
		}
		safe := f.safe(target)
		if !safe && (f.Staged(real) || writableByOthers(real)) {
			continue
		}
		f.add(f.target(target), from, safe)
		f.links(path.Dir(target), from) // a tool of a virtual environment, whose interpreter is a link again
	}
}

// safe reports a path in the place of a known toolchain.
func (f *search) safe(p string) bool {
	return slices.ContainsFunc(f.roots(), func(r root) bool { return r.holds(p) })
}

// target is what is shown for a program that a link leads to: the install that
// it belongs to where there is one, else the program alone.
func (f *search) target(program string) string {
	dir := path.Dir(program)
	if at := strings.LastIndex(program, "/node_modules/"); at >= 0 { // its packages need each other
		return program[:at] + "/node_modules"
	}
	if p := f.prefix(dir); p != dir || f.safe(program) {
		return p
	}
	return program
}

// prefix is the install that a directory of programs belongs to, else the
// directory itself.
func (f *search) prefix(dir string) string {
	for _, r := range f.roots() {
		if r.holds(dir) {
			return r.install(dir)
		}
	}
	up := path.Dir(dir)
	if !programDirs[path.Base(dir)] || up == f.Home || f.Broad(up) || !isInstall(up) {
		return dir
	}
	return up
}

// programDirs are what a directory of programs in an install is called.
var programDirs = map[string]bool{"bin": true, "sbin": true, "condabin": true, "shims": true, ".bin": true}

// installMarks are what lies beside the programs of an install, and homeMarks
// what lies in directories that are somebody's: a home or a project, that has a
// directory bin as well.
var (
	installMarks = []string{"lib", "lib64", "libexec", "share", "include", "pyvenv.cfg", "conda-meta"}
	homeMarks    = []string{
		".git", ".hg", ".svn", ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config", ".password-store", ".bash_history", ".bashrc", ".profile", ".env",
	}
)

// isInstall tells an install from a home or a project. In /opt there is nothing
// but installs, each in a directory of its own; elsewhere it must look like one.
func isInstall(dir string) bool {
	has := func(name string) bool { _, err := os.Lstat(path.Join(dir, name)); return err == nil }
	if slices.ContainsFunc(homeMarks, has) {
		return false
	}
	return dir != "/opt" && within(dir, "/opt") || slices.ContainsFunc(installMarks, has)
}

// add takes in an install, and what else its toolchain needs.
func (f *search) add(dir, from string, safe bool) {
	if dir == "" || dir == f.Home || f.Broad(dir) || f.inside(dir) || len(f.found.Installs) >= maxInstalls {
		return
	}
	i := Install{Dir: dir, From: from}
	if !safe || !clean(f.roots(), dir) {
		i.Secrets = secrets(dir)
	}
	f.found.Installs = slices.DeleteFunc(f.found.Installs, func(have Install) bool { return within(have.Dir, dir) })
	f.found.Installs = append(f.found.Installs, i)
	for _, r := range f.roots() {
		if !r.holds(dir) {
			continue
		}
		if r.variable != "" {
			f.setEnv(r.variable, r.value())
		}
		for _, more := range r.needs {
			if real, err := filepath.EvalSymlinks(more); err == nil {
				f.add(real, from, true)
			}
		}
	}
}

func (f *search) setEnv(name, value string) {
	kv := name + "=" + value
	if !slices.Contains(f.found.Env, kv) {
		f.found.Env = append(f.found.Env, kv)
	}
}

// isProgram reports a regular file that somebody may execute.
func isProgram(p string) bool {
	st, err := os.Stat(p)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

// writableByOthers reports a directory in which anybody may put a link.
func writableByOthers(dir string) bool {
	var st syscall.Stat_t
	return syscall.Stat(dir, &st) != nil || st.Mode&0o002 != 0
}

// readDir lists a directory, as far as maxEntries.
func readDir(dir string) []os.DirEntry {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	list, _ := f.ReadDir(maxEntries) // what could be read
	slices.SortFunc(list, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return list
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
