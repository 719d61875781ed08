package policy

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/agentguard/agentguard/internal/special"
)

// CeilingFile is where the ceiling of the host is.
const CeilingFile = "/etc/agentguard/ceiling.yaml"

// CeilingDir holds ceilings of users and groups, by number.
const CeilingDir = "/etc/agentguard/ceiling.d"

// CeilingsOf are the files that bound a user with these groups, of which any may be
// missing: the host's, those of the groups, the user's. All of them hold: none can
// allow what another does not.
func CeilingsOf(uid int, groups []int) []string {
	list := []string{CeilingFile}
	for _, g := range groups {
		list = append(list, CeilingDir+"/group-"+strconv.Itoa(g)+".yaml")
	}
	return append(list, CeilingDir+"/user-"+strconv.Itoa(uid)+".yaml")
}

// yields reports whether a ceiling lowers a clause without an error: nobody has asked for
// what is above it, or another ceiling was the last to lower it.
func (s Source) yields() bool {
	return s.IsDefault() || s.File == CeilingFile || strings.HasPrefix(s.File, CeilingDir+"/")
}

// Ceiling bounds what any policy may grant. It has the keys of a policy under
// "ceiling:"; a key that is left out is not bounded. A limit is the largest
// value, a word the least strict one, a list everything that may be in the
// policy's list.
type Ceiling struct {
	most Policy
	keys map[string]Source // the keys that are present
}

// ReadCeiling reads the ceiling at path. A missing file is an error that wraps
// fs.ErrNotExist: the caller decides what that means.
func ReadCeiling(path string) (*Ceiling, error) {
	src, err := readBounded(path)
	if err != nil {
		return nil, err
	}
	return parseCeiling(path, src)
}

func parseCeiling(name string, src []byte) (*Ceiling, error) {
	f, errs := parse(name, "ceiling", src)
	c := &Ceiling{keys: f.keys}
	errs = append(errs, f.applyTo(&c.most)...)
	for _, key := range []string{"env.set", "filesystem.protect"} {
		if src, ok := f.keys[key]; ok {
			errs = append(errs, wrong("remove it", "%s grants nothing that a ceiling could bound", key).at(src, key))
		}
	}
	for _, m := range c.most.grantedMounts() {
		if m.At != m.Path {
			errs = append(errs, wrong("write the PATH alone", "%s: a ceiling bounds paths of the host, not their places", m.clause).at(m.Source, m.clause))
		}
	}
	if len(errs) > 0 {
		return nil, errs.sorted()
	}
	return c, nil
}

// Bound holds the policy to the ceiling. Defaults above it are lowered to it
// and take the ceiling's line as their Source; what a file or a flag asked for
// beyond it is an error that names the clause, the line of the ceiling and what
// it allows. Paths are compared as text: the caller, who opens them, must follow no link
// that anybody but root can have made. A nil ceiling bounds nothing.
func (p *Policy) Bound(c *Ceiling) error {
	if c == nil {
		return nil
	}
	p.Ceilings = append(p.Ceilings, c)
	var errs Errors
	for _, k := range schema() {
		src, ok := c.keys[k.name]
		if !ok {
			continue
		}
		for _, e := range k.field.bound(p, &c.most, src) {
			e.Clause, e.Message = k.name, k.name+": "+e.Message
			errs = append(errs, e)
		}
	}
	errs = append(errs, p.boundPins(c)...)
	p.boundFound(c)
	return append(errs, p.boundWorkspace(c)...).sorted().err()
}

// boundPins holds pinned names to a ceiling that bounds the allowlist and says nothing
// of pins: a name that it allows would otherwise lead wherever its caller wants.
func (p *Policy) boundPins(c *Ceiling) (errs Errors) {
	const key = "network.resolve"
	src, bounds := c.keys["network.allowlist"]
	if _, said := c.keys[key]; said || !bounds {
		return nil
	}
	for _, r := range p.Resolve {
		if !c.pinCovered(r) {
			errs = append(errs, wrong(src.String()+" allows names, and no address of yours for one: "+key+" beside it would, or a range that holds it",
				"%s: %s is above the ceiling", key, quote(r.Name+"="+r.Addr)).at(r.Source, key))
		}
	}
	return errs
}

// pinCovered reports whether a range of the ceiling's has the address of a pin, or it is
// a special one that the ceiling's allow_private lets the name lead to.
func (c *Ceiling) pinCovered(r Resolve) bool {
	addr, err := netip.ParseAddr(r.Addr)
	if err != nil {
		return false
	}
	own := netip.PrefixFrom(addr, addr.BitLen()).String()
	for _, a := range c.most.Allow {
		if hostCovers(a.Host, a.Prefix, "", own) && meant(a.Prefix, own) {
			return true
		}
	}
	for _, t := range c.most.AllowPrivate {
		if privateCovers(t.Value, own) || special.Contains(addr) && privateCovers(t.Value, r.Name) {
			return true
		}
	}
	return false
}

// Allows holds a word of a key to the ceilings that have bounded the policy: what is asked
// for beside it, and comes to the same as the word, has the same bound. src has asked.
func (p *Policy) Allows(name, word string, src Source) error {
	k, ok := lookup(schema(), name)
	if !ok {
		return wrong("", "unknown key %s", quote(name)).at(src, name)
	}
	apply, bad := k.field.read(value{text: word, src: src})
	if bad != nil {
		return bad.at(src, name)
	}
	asked := &Policy{}
	if bad := apply(asked); bad != nil {
		return bad.at(src, name)
	}
	for _, c := range p.Ceilings {
		only := &Ceiling{most: c.most, keys: map[string]Source{}}
		if at, ok := c.keys[name]; ok {
			only.keys[name] = at
		}
		if err := asked.Bound(only); err != nil {
			return err
		}
	}
	return nil
}

// boundWorkspace holds the workspace, after its mode is bounded, to the paths
// that the ceiling allows for that mode.
func (p *Policy) boundWorkspace(c *Ceiling) Errors {
	w := p.Workspace
	if w.Path == "" {
		return nil
	}
	key, allowed := c.workspaceRoots(w.Mode)
	src, ok := c.keys["filesystem.workspace.path"]
	if !ok {
		src, ok = c.keys[key]
	}
	if !ok {
		return nil
	}
	names := make([]string, 0, len(allowed))
	for _, root := range allowed {
		if below(w.Path, root) {
			return nil
		}
		names = append(names, root)
	}
	if w.Mode == "cow" && w.ModeSource.yields() { // a default above the ceiling is lowered to it
		p.Workspace.Mode, p.Workspace.ModeSource = "ro", src
		return p.boundWorkspace(c)
	}
	allows := "no workspace in mode " + w.Mode
	if len(names) > 0 {
		allows = "what is below " + bounded(names)
	}
	return Errors{wrong(src.String()+" allows "+allows, "filesystem.workspace.path: %s (mode %s) is above the ceiling", quote(w.Path), w.Mode).
		at(w.Source, "filesystem.workspace.path")}
}

// workspaceRoots returns the list that bounds a workspace of the mode, beside
// workspace.path, and every directory below which it may lie: what may be
// written may be staged, and what may be staged may be read.
func (c *Ceiling) workspaceRoots(mode string) (key string, roots []string) {
	mounts := c.most.Writable
	key = "filesystem.writable_mounts"
	if mode != "rw" {
		key, mounts = "filesystem.cow_mounts", concat(c.most.Cow, c.most.Writable)
	}
	if mode == "ro" {
		key, mounts = "filesystem.read_only_mounts", concat(c.most.ReadOnly, mounts)
	}
	if c.most.Workspace.Path != "" {
		roots = append(roots, c.most.Workspace.Path)
	}
	for _, m := range mounts {
		roots = append(roots, m.Path)
	}
	return key, roots
}
