package changes

import (
	"encoding/json"
	"strconv"
	"strings"
)

// scripts are the parts of a package.json that are run, or that say what is. Names are told apart by
// case, as their readers do: encoding/json would take "Scripts" for what it calls "scripts".
func scripts(b []byte) any {
	var all map[string]any
	if len(b) > 0 && json.Unmarshal(b, &all) != nil {
		return string(b) // not readable: every change counts
	}
	run := map[string]any{}
	for _, name := range []string{"scripts", "bin", "config", "gypfile", "packageManager", "devEngines", "pnpm", "husky", "simple-git-hooks", "lint-staged"} {
		if v, ok := all[name]; ok {
			run[name] = v
		}
	}
	return run
}

var lockFiles = []string{
	"package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "cargo.lock", "poetry.lock", "uv.lock", "pipfile.lock", "gemfile.lock",
	"composer.lock", "requirements.txt", "bun.lock", "flake.lock",
}

var (
	urlHost  = once(`(?i)[a-z][a-z0-9+.-]*://([^/\s"'<>?#\\]+)|git@([a-z0-9.-]+)`)
	jsonByte = once(`\\(?:/|u00[0-9a-fA-F]{2})`)
)

// hosts are the places that a lock file names. A user name before one is none: it may look like one.
func hosts(b []byte) (list []string) {
	plain := jsonByte().ReplaceAllFunc(b, func(esc []byte) []byte {
		if c, err := strconv.ParseUint(string(esc[min(2, len(esc)):]), 16, 8); err == nil {
			return []byte{byte(c)}
		}
		return esc[1:]
	})
	for _, m := range urlHost().FindAllSubmatch(plain, -1) {
		h := strings.ToLower(string(m[1]) + string(m[2]))
		list = append(list, h[strings.LastIndexByte(h, '@')+1:])
	}
	return list
}

// newHost returns a host that only the new lock file names.
func newHost(old, now []byte) string {
	known := map[string]bool{}
	for _, h := range hosts(old) {
		known[h] = true
	}
	if len(known) == 0 {
		return "" // a first lock file, or one without places
	}
	for _, h := range hosts(now) {
		if !known[h] {
			return h
		}
	}
	return ""
}
