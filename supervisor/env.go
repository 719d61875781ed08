package supervisor

import (
	"path"
	"slices"
	"strings"

	"github.com/agentguard/agentguard/policy"
)

// defaultPath is PATH when nothing of the caller's is visible inside.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// buildEnv makes the command's environment from nothing: the few variables
// that every program expects, those that the policy lets through, and those
// that it sets. caller is the caller's environment as "NAME=value"; found says where
// toolchains and caches are.
func buildEnv(p *policy.Policy, caller []string, view []Entry, hasBash bool, found *findings) []string {
	vars := map[string]string{
		"HOME": Home, "TMPDIR": "/tmp", "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/sh",
	}
	if hasBash {
		vars["SHELL"] = "/bin/bash"
	}
	from := map[string]string{}
	for _, kv := range caller {
		if name, value, ok := strings.Cut(kv, "="); ok {
			from[name] = value
		}
	}
	vars["PATH"] = visiblePath(slices.Concat(found.first, strings.Split(from["PATH"], ":")), view, found.moved)
	for name, value := range from {
		if p.PassesEnv(name) {
			vars[name] = value
		}
	}
	for _, kv := range found.env {
		name, value, _ := strings.Cut(kv, "=")
		vars[name] = value
	}
	for _, e := range p.EnvSet {
		vars[e.Name] = e.Value
	}
	env := make([]string, 0, len(vars))
	for _, name := range sortedKeys(vars) {
		env = append(env, name+"="+vars[name])
	}
	return env
}

// addTerminal adds what describes the caller's terminal besides TERM, and what a
// person wants to see on it (no-color.org), where the policy says nothing.
func addTerminal(env, caller []string) []string {
	for _, name := range []string{"COLORTERM", "NO_COLOR"} {
		has := func(kv string) bool { return strings.HasPrefix(kv, name+"=") }
		if i := slices.IndexFunc(caller, has); i >= 0 && !slices.ContainsFunc(env, has) {
			env = append(env, caller[i])
		}
	}
	slices.Sort(env)
	return env
}

// visiblePath keeps the absolute directories that the view shows; moved has those
// that it shows under another name.
func visiblePath(dirs []string, view []Entry, moved map[string]string) string {
	var keep []string
	for _, dir := range dirs {
		if !path.IsAbs(dir) {
			continue
		}
		if real := moved[path.Clean(dir)]; real != "" && !visible(view, dir) {
			dir = real
		}
		if visible(view, dir) && !slices.Contains(keep, dir) {
			keep = append(keep, dir)
		}
	}
	if len(keep) == 0 {
		return defaultPath
	}
	return strings.Join(keep, ":")
}

// lookupEnv returns the value of name in a list of "NAME=value".
func lookupEnv(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// candidates are the paths that execve tries, in order, as execvp(3) does.
func candidates(argv0 string, env []string) []string {
	if strings.Contains(argv0, "/") {
		return []string{argv0}
	}
	var out []string
	for _, dir := range strings.Split(lookupEnv(env, "PATH"), ":") {
		if dir == "" {
			dir = "."
		}
		out = append(out, dir+"/"+argv0)
	}
	return out
}
