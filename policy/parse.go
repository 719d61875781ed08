package policy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// HostFile is the policy of the host. Alone among policy files it does not
// enumerate: leaving out the workspace there takes nothing from the caller.
const HostFile = "/etc/agentguard/policy.yaml"

// MaxBytes is the size of the largest policy that is read.
const MaxBytes = 1 << 20

// change is one value of a file, ready to be applied.
type change struct {
	key   string
	src   Source
	apply edit
	from  value // what apply was read from; the zero value for the defaults
}

// File is one source of clauses: the defaults, a policy file or the flags. It
// is made by Defaults, Parse, ReadFile and FromFlags and consumed by Merge.
type File struct {
	Name       string // path as given; "" for defaults and flags
	changes    []change
	keys       map[string]Source // every key that is present, even as an empty list
	enumerates bool              // a policy file other than HostFile
}

// has reports whether the file has a key that is name or lies under it.
func (f *File) has(name string) bool {
	for k := range f.keys {
		if k == name || strings.HasPrefix(k, name+".") {
			return true
		}
	}
	return false
}

// ReadFile reads and parses the policy file at path ("-" is standard input).
func ReadFile(path string) (*File, error) {
	src, err := readBounded(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, src)
}

// readBounded reads at most one byte more than Parse accepts.
func readBounded(path string) ([]byte, error) {
	var r io.Reader = os.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("policy %s: %w", printable(path), cause(err))
		}
		defer func() { _ = f.Close() }() // read only: nothing to lose
		r = f
	}
	src, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", printable(path), cause(err))
	}
	return src, nil
}

// cause takes the path out of an error: a caller chose it, and it is printed
// quoted.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Parse reads a policy. name is the path for error messages, and its directory
// is what relative paths are resolved against. The error is an Errors with
// every problem of the text.
func Parse(name string, src []byte) (*File, error) {
	f, errs := parse(name, "sandbox", src)
	if len(errs) > 0 {
		return nil, errs
	}
	f.enumerates = filepath.Clean(name) != HostFile
	return f, nil
}

// ParseFragment reads a policy that only adds to others, such as a profile: to
// leave out the workspace there takes nothing away. Relative paths are refused,
// since it lies nowhere. name is for error messages.
func ParseFragment(name string, src []byte) (*File, error) {
	f, errs := parseFrom(name, "", "sandbox", src)
	return f, errs.err()
}

// parse reads a document whose only top-level key is root.
func parse(name, root string, src []byte) (*File, Errors) {
	return parseFrom(name, baseOf(name), root, src)
}

// parseFrom is parse with the directory that relative paths are resolved against.
func parseFrom(name, base, root string, src []byte) (*File, Errors) {
	r := &reader{
		name: name,
		root: root,
		base: base,
		keys: schema(),
		file: &File{Name: name, keys: map[string]Source{}},
	}
	if body := r.document(src); body != nil {
		r.top(body)
	}
	if root == "sandbox" {
		r.impliedEgress()
	}
	return r.file, r.errs.sorted()
}

// baseOf is the directory that the relative paths of a file are resolved
// against: its own, or the current one when it came through a descriptor.
func baseOf(name string) string {
	dir := filepath.Dir(name)
	for _, unnamed := range []string{"/dev", "/proc"} {
		if below(filepath.Clean(name), unnamed) {
			dir = "."
		}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "" // the current directory is gone: relative paths are refused
	}
	return abs
}

// impliedEgress makes a list of destinations without an egress key mean
// "allowlist", and refuses a list that an egress key makes ineffective.
func (r *reader) impliedEgress() {
	first, ok := r.file.firstAllowed()
	if !ok {
		return
	}
	src, present := r.file.keys["network.egress"]
	if !present {
		r.file.implyAllowlist(r.keys, first)
		return
	}
	probe := &Policy{}
	for _, c := range r.file.changes {
		if c.key == "network.egress" {
			_ = c.apply(probe) // a word never fails to apply
		}
	}
	if probe.Egress.Value == "deny" {
		r.errs = append(r.errs, &Error{
			Source: src, Clause: "network.egress",
			Message: "egress: deny makes the entries of allowlist ineffective",
			Hint:    "write egress: allowlist, or empty the list",
		})
	}
}

// firstAllowed returns the place of the first destination that the file adds.
func (f *File) firstAllowed() (Source, bool) {
	for _, c := range f.changes {
		if c.key != "network.allowlist" {
			continue
		}
		if probe := (&Policy{}); c.apply(probe) == nil { // a removal fails on an empty list
			return c.src, true
		}
	}
	return Source{}, false
}

// add records one value.
func (f *File) add(name string, from value, apply edit) {
	f.changes = append(f.changes, change{name, from.src, apply, from})
	if _, ok := f.keys[name]; !ok {
		f.keys[name] = from.src
	}
}

// implyAllowlist records that egress is an allowlist, because there is an entry at src.
func (f *File) implyAllowlist(keys []key, src Source) {
	v := value{text: "allowlist", src: src}
	k, _ := lookup(keys, "network.egress")
	apply, p := k.field.read(v)
	if p != nil {
		apply = func(*Policy) *problem { return p }
	}
	f.add(k.name, v, apply)
}
