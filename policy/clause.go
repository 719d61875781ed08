package policy

// Clause is one line of an explained policy.
type Clause struct {
	Key    string // dotted, as in the file without the leading "sandbox."
	Value  string // as in the file ("none" is no limit, "[]" an empty list); printable
	Source Source
}

// Clauses lists the policy in the order of the schema, one clause for each
// scalar and each entry of a list, so that every grant has its source.
func (p *Policy) Clauses() []Clause {
	var out []Clause
	for _, k := range schema() {
		for _, c := range k.field.show(p) {
			c.Key, c.Value = k.name, printable(c.Value)
			out = append(out, c)
		}
	}
	return out
}
