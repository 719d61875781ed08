package suggest

import (
	"path"
	"slices"

	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"
)

// enough is how many paths of one directory make the directory the smaller
// thing to say.
const enough = 4

// collapse turns many paths of one directory into the directory, again and
// again, but never into one that a policy would call broad, that holds
// credentials by its name, or that lies directly in a home directory: ~/.config
// is full of what nobody asked for.
func collapse(paths map[string]bool) map[string]bool {
	out := map[string]bool{}
	for p, write := range paths {
		out[p] = write
	}
	for {
		kids := map[string][]string{}
		for p := range out {
			kids[path.Dir(p)] = append(kids[path.Dir(p)], p)
		}
		changed := false
		for dir, list := range kids {
			if len(list) < enough || !mayGrant(dir, false) {
				continue
			}
			write := slices.ContainsFunc(list, func(p string) bool { return out[p] })
			if write && !mayGrant(dir, true) {
				continue
			}
			for _, p := range list {
				delete(out, p)
			}
			out[dir] = out[dir] || write
			changed = true
		}
		if !changed {
			return cover(out)
		}
	}
}

// cover drops what lies below another entry that allows as much.
func cover(paths map[string]bool) map[string]bool {
	out := map[string]bool{}
	for p, write := range paths {
		if !covered(paths, p, write) {
			out[p] = write
		}
	}
	return out
}

func covered(paths map[string]bool, p string, write bool) bool {
	for p != "/" {
		p = path.Dir(p)
		if w, ok := paths[p]; ok && (w || !write) {
			return true
		}
	}
	return false
}

// mayGrant reports whether a directory may be suggested whole.
func mayGrant(dir string, write bool) bool {
	up := path.Dir(dir)
	home := path.Dir(up) == "/home" || up == "/root"
	return dir != "/" && up != "/" && !home && policy.BroadMount(dir, write) == "" && trace.Advisable([]byte(dir))
}
