package policy

import (
	"slices"
	"strings"
)

// auto stands for what is found: toolchains by the caller's PATH, caches by
// whether they are there.
const auto = "auto"

// cacheNames are the caches that a policy can name.
var cacheNames = [...]string{"cargo", "go-build", "go-mod", "gradle", "maven", "npm", "pip", "pnpm", "uv", "yarn"}

// CacheNames lists the caches that filesystem.caches knows, besides "auto".
func CacheNames() []string { return slices.Clone(cacheNames[:]) }

func parseCache(v value) (Text, *problem) {
	if v.text == auto || slices.Contains(cacheNames[:], v.text) {
		return Text{Value: v.text, Source: v.src}, nil
	}
	names := append([]string{auto}, cacheNames[:]...)
	hint := didYouMean(v.text, names)
	if hint == "" {
		hint = "one of " + strings.Join(names, ", ") + "; any other directory is granted with cow_mounts (--cow)"
	}
	return Text{}, wrong(hint, "no cache is called %s", quote(v.text))
}

// toolchainList is a list of directories and the word "auto". "none" takes away
// what earlier sources added, and is itself taken away by what later ones add.
type toolchainList struct{ list[Text] }

func toolchains() toolchainList {
	covers := func(most, entry string) bool {
		return entry == none || entry != auto && most != none && pathCovers(most, entry)
	}
	return toolchainList{texts(func(p *Policy) *[]Text { return &p.Toolchains }, parseToolchain, autoCovers(covers))}
}

// autoCovers lets the word "auto" of a ceiling include every entry.
func autoCovers(covers func(most, entry string) bool) func(most, entry string) bool {
	return func(most, entry string) bool { return most == auto || covers(most, entry) }
}

func parseToolchain(v value) (Text, *problem) {
	if v.text == auto || v.text == none {
		return Text{Value: v.text, Source: v.src}, nil
	}
	if !strings.ContainsAny(v.text, "/.") {
		return Text{}, wrong("write auto, none, or the directory of its programs: /opt/"+v.text+"/bin", "%s is not a directory", quote(v.text))
	}
	return parsePath(v)
}

func (l toolchainList) listWords() []string { return []string{auto, none} }

func (l toolchainList) read(v value) (edit, *problem) {
	apply, wrong := l.list.read(v)
	if wrong != nil {
		return nil, wrong
	}
	return func(p *Policy) *problem {
		if v.text == none {
			p.Toolchains = nil
		} else {
			p.Toolchains = slices.DeleteFunc(p.Toolchains, func(t Text) bool { return t.Value == none })
		}
		return apply(p)
	}, nil
}

// show says "none" of an empty list: a ceiling, or a removal, left nothing.
func (l toolchainList) show(p *Policy) []Clause {
	if len(p.Toolchains) == 0 {
		return []Clause{{Value: none}}
	}
	return l.list.show(p)
}

// bound says who took the default away. Nothing is below any ceiling, an empty one too.
func (l toolchainList) bound(p, most *Policy, src Source) Errors {
	if len(p.Toolchains) == 1 && p.Toolchains[0].Value == none {
		return nil
	}
	errs := l.list.bound(p, most, src)
	if len(p.Toolchains) == 0 {
		p.Toolchains = []Text{{Value: none, Source: src}}
	}
	return errs
}

// AutoToolchains reports whether toolchains are found by the caller's PATH, and
// what said so.
func (p *Policy) AutoToolchains() (Source, bool) { return autoOf(p.Toolchains) }

// AutoCaches reports whether every cache that is there is shown, and what said so.
func (p *Policy) AutoCaches() (Source, bool) { return autoOf(p.Caches) }

func autoOf(list []Text) (Source, bool) {
	for _, t := range list {
		if t.Value == auto {
			return t.Source, true
		}
	}
	return Source{}, false
}

// ToolchainDirs are the directories that were named as toolchains.
func (p *Policy) ToolchainDirs() []Text { return entries(p.Toolchains) }

// NamedCaches are the caches that were named.
func (p *Policy) NamedCaches() []Text { return entries(p.Caches) }

func entries(list []Text) []Text {
	var out []Text
	for _, t := range list {
		if t.Value != auto && t.Value != none {
			out = append(out, t)
		}
	}
	return out
}

// boundFound holds what is found, and not named by its path, to the directories
// that the ceiling lets a policy show in the same way, unless the ceiling
// itself speaks of toolchains and caches.
func (p *Policy) boundFound(c *Ceiling) {
	roots := func(lists ...[]Mount) []string {
		out := []string{} // not nil: nothing is allowed
		for _, m := range concat(lists...) {
			out = append(out, m.Path)
		}
		return out
	}
	has := func(key string) bool { _, ok := c.keys[key]; return ok }
	if has("filesystem.read_only_mounts") && !has("filesystem.toolchains") {
		p.ToolchainRoots = meet(p.ToolchainRoots, roots(c.most.ReadOnly, c.most.Cow, c.most.Writable))
	}
	if has("filesystem.cow_mounts") && !has("filesystem.caches") {
		p.CacheRoots = meet(p.CacheRoots, roots(c.most.Cow, c.most.Writable))
	}
}

// meet returns the directories that lie below one of each list; nil is anywhere.
func meet(a, b []string) []string {
	if a == nil {
		return b
	}
	out := []string{}
	for _, pair := range [][2][]string{{a, b}, {b, a}} {
		for _, dir := range pair[0] {
			if slices.ContainsFunc(pair[1], func(root string) bool { return below(dir, root) }) {
				out = append(out, dir)
			}
		}
	}
	return out
}
