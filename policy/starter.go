package policy

import (
	"bytes"
	"strconv"
	"strings"
)

// Starter returns a policy file to begin with: it grants what a run without a
// file gets, and has every other key as a comment, with its default. Lines with
// "#" in the first column are keys: without that sign they are what they show.
func Starter() []byte {
	b := bytes.NewBufferString(starterHead)
	p := defaults(Context{MemTotal: 8 << 30, Cwd: "."})
	var open []string
	for _, k := range schema() {
		parts := strings.Split(k.name, ".")
		name, parents := parts[len(parts)-1], parts[:len(parts)-1]
		active := strings.HasPrefix(k.name, "filesystem.workspace.")
		for i, parent := range parents {
			if i < len(open) && open[i] == parent {
				continue
			}
			open = append(open[:i:i], parent)
			line(b, i+1, i == 0 && parent == "filesystem" || active, parent+":")
		}
		open = open[:len(parents)]
		prose := about[k.name]
		if words := choices(k); words != "" {
			prose += ": " + words
		}
		if k.flag != "" {
			prose += " (--" + k.flag + ")"
		}
		b.WriteString(strings.Repeat("  ", len(parts)) + "# " + prose + "\n")
		line(b, len(parts), active, name+": "+k.starterValue(&p))
	}
	return b.Bytes()
}

const starterHead = `# A policy for agentguard: agentguard exec -p THIS-FILE -- COMMAND
# Lines with # in the first column are keys with their defaults: take the sign away to
# change one. agentguard policy check THIS-FILE reads it; docs/policy.md explains all of it.
sandbox:
`

func line(b *bytes.Buffer, depth int, active bool, text string) {
	if !active {
		b.WriteByte('#')
	}
	b.WriteString(strings.Repeat("  ", depth) + text + "\n")
}

// choices lists the words of a key that takes one of a few.
func choices(k key) string {
	if f, ok := k.field.(scalar); ok {
		return strings.Join(f.words, ", ")
	}
	if k.name == "filesystem.caches" {
		return auto + ", " + strings.Join(CacheNames(), ", ")
	}
	return ""
}

// starterValue is the default of a key as YAML.
func (k key) starterValue(p *Policy) string {
	switch {
	case k.form == named:
		return "{}"
	case k.form == worded:
		return k.words()[0]
	case k.name == "process.user":
		return "1000"
	}
	var values []string
	for _, c := range k.field.show(p) {
		values = append(values, c.Value)
	}
	if k.form != many {
		return values[0]
	}
	if values[0] == "[]" {
		return "[]"
	}
	for i, v := range values {
		values[i] = strconv.Quote(v)
	}
	return "[" + strings.Join(values, ", ") + "]"
}
