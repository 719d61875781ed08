package query

import (
	"errors"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentguard/agentguard/trace"
)

// build makes the test of a field with an operator and a value, and refuses
// what could never hold.
func (p *parser) build(f *field, op, v token) (node, error) {
	fail := func(at token, hint, format string, a ...any) (node, error) {
		e := p.fail(at.at, format, a...)
		e.Hint = hint
		return nil, e
	}
	if !f.takes(op.text) {
		return fail(op, "it takes "+strings.Join(operators[f.typ], " "), "%s is of type %s, which takes no %s", f.name, f.typ, op.text)
	}
	switch op.text {
	case "~", "!~":
		re, err := regexp.Compile(v.text)
		if err != nil {
			return fail(v, "", "this regular expression is not one: %s", syntax(err))
		}
		return search{f, re, op.text == "!~"}, nil
	case "glob":
		re, err := regexp.Compile(globExpr(v.text))
		if err != nil {
			return fail(v, "", "this pattern cannot be matched: %s", syntax(err))
		}
		return search{f, re, false}, nil
	}
	if f.typ != Text && f.typ != List {
		return p.typed(f, op, v, fail)
	}
	if f.words != nil && slices.Contains([]string{"=", "==", "!=", "in"}, op.text) && !slices.Contains(f.words, v.text) {
		return fail(v, oneOf(v.text, f.words), "%s is never %s", f.name, v)
	}
	return literal{f, op.text, []byte(v.text)}, nil
}

// failing makes an error at a token, with a hint.
type failing func(at token, hint, format string, a ...any) (node, error)

// typed makes the test of a field that is no text.
func (p *parser) typed(f *field, op, v token, fail failing) (node, error) {
	switch f.typ {
	case Bool:
		if v.text != "true" && v.text != "false" {
			return fail(v, "write "+f.name+", or not "+f.name, "%s is true or false", f.name)
		}
		if (op.text == "!=") == (v.text == "true") {
			return inverse{present{f}}, nil
		}
		return present{f}, nil
	case Addr:
		prefix, err := parsePrefix(v.text)
		if err != nil {
			return fail(v, "as in 192.0.2.1, 2001:db8::/32", "%s is no address or prefix", v)
		}
		return within{f, prefix, op.text == "!="}, nil
	}
	n, err := parseNumber(f.typ, v.text)
	if err != nil {
		return fail(v, unitHint[f.typ], "%s is not of type %s", v, f.typ)
	}
	n.field, n.op = f, op.text
	return n, nil
}

// syntax is what regexp found, in its own words.
func syntax(err error) string {
	return trace.Line(strings.TrimPrefix(err.Error(), "error parsing regexp: "))
}

// operators lists what each type takes.
var operators = [...][]string{
	Text:   {"=", "==", "!=", "<", "<=", ">", ">=", "~", "!~", "glob", "in"},
	Number: {"=", "==", "!=", "<", "<=", ">", ">=", "in"},
	Bytes:  {"=", "==", "!=", "<", "<=", ">", ">=", "in"},
	Span:   {"=", "==", "!=", "<", "<=", ">", ">=", "in"},
	Addr:   {"=", "==", "!=", "in"},
	Bool:   {"=", "==", "!="},
	List:   {"=", "==", "!=", "~", "!~", "glob", "in"},
}

// unitHint shows how a number is written.
var unitHint = map[Type]string{
	Number: "as in 42, -1, 0x1f, 0644",
	Bytes:  "as in 4096, 64KiB, 10MiB, 1GiB, 5MB",
	Span:   "as in 1500000, 1.5ms, 2s, 1h",
}

func (f *field) takes(op string) bool { return slices.Contains(operators[f.typ], op) }

// parsePrefix reads an address as the prefix that holds it alone.
func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		if a.Zone() != "" {
			return netip.Prefix{}, errors.New("zone")
		}
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	return p.Masked(), err
}

var sizes = []struct {
	unit string
	n    float64
}{
	{"KiB", 1 << 10},
	{"MiB", 1 << 20},
	{"GiB", 1 << 30},
	{"TiB", 1 << 40},
	{"kB", 1e3},
	{"KB", 1e3},
	{"MB", 1e6},
	{"GB", 1e9},
	{"TB", 1e12},
	{"B", 1},
}

func parseNumber(t Type, s string) (number, error) {
	if v, err := strconv.ParseUint(s, 0, 64); err == nil && !strings.Contains(s, "_") {
		return number{num: v}, nil
	}
	if v, err := strconv.ParseInt(s, 0, 64); err == nil && v < 0 {
		return number{neg: true, num: -uint64(v)}, nil
	}
	if t == Span {
		d, err := time.ParseDuration(s)
		return number{neg: d < 0, num: uint64(max(d, -d))}, err
	}
	for _, u := range sizes {
		rest, ok := strings.CutSuffix(s, u.unit)
		if t != Bytes || !ok {
			continue
		}
		v, err := strconv.ParseFloat(rest, 64)
		if err != nil || math.IsNaN(v) || v < 0 || v*u.n >= 1<<63 {
			break
		}
		return number{num: uint64(v * u.n)}, nil
	}
	return number{}, errors.New("no number")
}

// globExpr turns a glob into a regular expression over bytes: * and ? stay
// within a name of a path, ** does not, and \ takes the next sign as it is.
func globExpr(glob string) string {
	b := []byte(`(?s)\A`)
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; {
		case c == '*' && i+1 < len(glob) && glob[i+1] == '*':
			b = append(b, ".*"...)
			i++
		case c == '*':
			b = append(b, "[^/]*"...)
		case c == '?':
			b = append(b, "[^/]"...)
		case c == '\\' && i+1 < len(glob):
			i++
			b = append(b, regexp.QuoteMeta(glob[i:i+1])...)
		default:
			b = append(b, regexp.QuoteMeta(glob[i:i+1])...)
		}
	}
	return string(append(b, `\z`...))
}

func fieldNames() []string {
	names, _ := Fields()
	return names
}

// oneOf says which of the words was meant by s. Long lists are those of numbers
// that have names: errno, signal.
func oneOf(s string, words []string) string {
	const many = 48
	if len(words) <= many {
		return suggest(s, words, "it is one of "+strings.Join(words, ", "))
	}
	if n, err := strconv.Atoi(s); err == nil && n > 0 && n <= len(words) {
		return "did you mean " + words[n-1] + "?"
	}
	return suggest(s, words, "as in "+strings.Join(words[:4], ", "))
}

// suggest names the word nearest to s, or says otherwise.
func suggest(s string, words []string, otherwise string) string {
	best, dist := "", max(2, len(s)/3)+1
	for _, w := range words {
		if d := distance(s, w, dist); d < dist {
			best, dist = w, d
		}
	}
	if best == "" {
		return otherwise
	}
	return "did you mean " + best + "?"
}

// distance is the edit distance of two words, or limit when it is not less.
func distance(a, b string, limit int) int {
	if len(a) > 64 || len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diag := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := diag
			if a[i-1] != b[j-1] {
				change++
			}
			diag = row[j]
			row[j] = min(change, row[j]+1, row[j-1]+1)
		}
	}
	return min(row[len(b)], limit)
}
