package policy

import (
	"os"
	"strings"
)

// Flag is one policy flag of the command line.
type Flag struct {
	Name  string // the long name without dashes: "ro"
	Value string
}

// FromFlags reads the policy flags of a command line in their order. Relative
// paths are resolved against the current directory. The error is an Errors
// with every problem; an unknown name is one of them.
func FromFlags(flags []Flag) (*File, error) {
	cwd, err := os.Getwd()
	if err != nil {
		cwd = "" // relative paths are refused one by one
	}
	keys := schema()
	f := &File{keys: map[string]Source{}}
	var errs Errors
	for _, flag := range flags {
		src := Source{Flag: "--" + flag.Name}
		k, v, p := flagKey(keys, flag)
		if p == nil {
			v.src, v.base = src, cwd
			var apply edit
			if apply, p = k.field.read(v); p == nil {
				f.add(k.name, v, apply)
				continue
			}
		}
		errs = append(errs, p.at(src, k.name))
	}
	if first, ok := f.firstAllowed(); ok {
		f.implyAllowlist(keys, first)
	}
	return f, errs.err()
}

// flagKey finds the key that a flag sets and splits NAME=VALUE where the key
// is a mapping.
func flagKey(keys []key, flag Flag) (key, value, *problem) {
	var names []string
	for _, k := range keys {
		if k.flag == "" {
			continue
		}
		names = append(names, k.flag)
		if k.flag != flag.Name {
			continue
		}
		name, text, assigned := strings.Cut(flag.Value, "=")
		switch {
		case k.name == "env.allowlist" && assigned:
			continue // NAME=VALUE belongs to env.set, the next key
		case k.form == named && !assigned:
			return k, value{}, wrong("write NAME=ADDRESS", "%s has no =", quote(flag.Value))
		case k.form == named:
			return k, value{key: name, text: text}, nil
		case k.name == "process.max_memory_mb":
			return k, value{text: bytesText(flag.Value)}, nil
		}
		return k, value{text: flag.Value}, nil
	}
	return key{}, value{}, wrong(didYouMean(flag.Name, names), "unknown policy flag %s", quote(flag.Name))
}

// bytesText gives a number without a unit the unit B: a flag is in bytes where
// the key of the file is in megabytes.
func bytesText(text string) string {
	if text != "" && strings.Trim(text, "0123456789.") == "" {
		return text + "B"
	}
	return text
}
