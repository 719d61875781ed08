package seccomp

// Config says which filter a command gets. The zero value is that of a run with
// namespaces and a PID 1 of another user.
type Config struct {
	Extra   []string // names of refused calls that the policy grants
	Sharing *Sharing // the command shares the host's namespaces; nil: it has its own
	Guard   bool     // PID 1 has the command's own user: no call may act on it
	// Counted says, with Guard or Sharing, that what the command takes on disks is added up by what the kernel
	// says was written: it cannot reserve room.
	Counted bool
}

// Filter returns the command's filter for this architecture as an array of
// struct sock_filter (8 bytes each, little endian). Naming a call in Extra that is
// allowed anyway changes nothing. The error names every call of Extra that is unknown
// or may never be granted.
func (c Config) Filter() ([]byte, error) {
	if err := native.check(c.Extra); err != nil {
		return nil, err
	}
	return encode(native.assemble(c)), nil
}

// A Part is what of a filter refuses a call.
type Part uint8

// The parts.
const (
	Nothing   Part = iota // it is not refused with EPERM
	ByTable               // the tables and their rules, of every run
	BySharing             // [Sharing]
	ByGuard               // Config.Guard
	ByNotify              // what a filter refuses besides because it reports ([Config.NotifyFilter])
)

// Decide returns what Filter answers to a call by this architecture's own entry: the
// same decision, reached without the filter's program.
func (c Config) Decide(nr int, args [6]uint64) Verdict {
	v, _ := native.judge(uint32(nr), args, c)
	return v
}

// RefusedBy returns which part of NotifyFilter refuses a call; of Filter where the two agree.
func (c Config) RefusedBy(nr int, args [6]uint64) Part {
	_, by := native.judgeNotified(uint32(nr), args, c)
	return by
}

// A narrowing is what a run's situation takes away of a call beyond the tables: what the
// rule does not allow is answered otherwise. A rule without cases allows nothing.
type narrowing struct {
	rule      rule
	otherwise Verdict
	part      Part // Nothing: nothing is taken away
}

func (c Config) narrower(name string) narrowing {
	if name == secretMemory && (c.Sharing != nil || c.Guard) { // as on a kernel without it
		return narrowing{nil, verdictAbsent, ByGuard}
	}
	if c.Sharing != nil {
		if r, ok := c.Sharing.rule(name); ok {
			return narrowing{r, verdictRefuse, BySharing}
		}
	}
	if c.Counted && (c.Guard || c.Sharing != nil) && name == "fallocate" {
		return narrowing{frees, verdictUnsupported, ByGuard}
	}
	if r := guarded[name]; c.Guard && r != nil {
		return narrowing{r, verdictRefuse, ByGuard}
	}
	return narrowing{}
}

// span is what a filter answers to a call.
func (c Config) span(row *call) span {
	s, n := row.span(c.Extra), c.narrower(row.name)
	if n.part == Nothing || s.rule == nil && s.verdict != verdictAllow {
		return s
	}
	if s.rule != nil {
		n.rule = s.rule.and(n.rule)
	}
	if len(n.rule) == 0 {
		return span{first: s.first, verdict: n.otherwise}
	}
	return span{first: s.first, rule: n.rule, otherwise: n.otherwise}
}

// and allows what both allow: a case of one together with a case of the other.
func (r rule) and(o rule) rule {
	both := rule{}
	for _, a := range r {
		for _, b := range o {
			both = append(both, append(append(ruleCase{}, a...), b...))
		}
	}
	return both
}

func (a *arch) judge(nr uint32, args [6]uint64, c Config) (Verdict, Part) {
	if a.x32 && nr >= x32Bit && nr != skipped {
		return verdictKill, Nothing
	}
	row := a.byNumber(int(nr))
	if row == nil {
		return verdictAbsent, Nothing
	}
	v := row.verdict(c.Extra)
	if row.action >= ruled && rules[row.action].allows(args) {
		v = verdictAllow
	}
	if v == verdictRefuse {
		return v, ByTable
	}
	n := c.narrower(row.name)
	if v != verdictAllow || n.part == Nothing || n.rule.allows(args) {
		return v, Nothing
	}
	if n.otherwise != verdictRefuse {
		return n.otherwise, Nothing
	}
	return verdictRefuse, n.part
}

// Refuses reports whether a filter refuses a call of that name whatever its arguments, though
// the tables and Extra do not.
func (s Sharing) Refuses(name string) bool {
	r, ok := s.rule(name)
	return ok && len(r) == 0
}
