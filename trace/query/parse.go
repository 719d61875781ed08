package query

import (
	"strings"

	"github.com/agentguard/agentguard/trace"
)

// Bounds of an expression: it may come from a program.
const (
	maxExpr  = 64 << 10 // bytes
	maxDepth = 200      // of parentheses and nots
)

// Query is an expression that was understood. One Query serves one goroutine.
type Query struct {
	root  node
	value value // of the field that is looked at, reused
}

// Match reports whether the expression is true of the record.
func (q *Query) Match(e *trace.Event) bool { return q.root.match(e, &q.value) }

// Parse reads an expression. The error is an *Error.
func Parse(expr string) (*Query, error) {
	p := &parser{lexer: lexer{src: expr}}
	if len(expr) > maxExpr {
		return nil, p.fail(0, "longer than %d bytes", maxExpr)
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	root, err := p.expr(0)
	if err != nil {
		return nil, err
	}
	if p.tok.class != end {
		return nil, p.unexpected("and, or, or the end")
	}
	return &Query{root: root}, nil
}

type parser struct {
	lexer
	tok   token // the next one
	depth int
}

func (p *parser) advance() (err error) {
	p.tok, err = p.next()
	return err
}

func (p *parser) unexpected(want string) *Error {
	e := p.fail(p.tok.at, "%s is not expected here", p.tok)
	if p.tok.class == end {
		e.Msg = "the expression ends too early"
	}
	e.Hint = "what fits is " + want
	return e
}

// binary returns the binding power of the operator that comes next, 0 if none:
// and binds closer than or.
func (p *parser) binary() int {
	switch {
	case p.tok.says("or") || p.tok.is("||"):
		return 1
	case p.tok.says("and") || p.tok.is("&&"):
		return 2
	}
	return 0
}

// expr reads operands joined by operators that bind closer than power.
func (p *parser) expr(power int) (node, error) {
	left, err := p.operand()
	if err != nil {
		return nil, err
	}
	for {
		op := p.binary()
		if op <= power {
			return left, nil
		}
		if err := p.advance(); err != nil {
			return nil, err
		}
		right, err := p.expr(op)
		if err != nil {
			return nil, err
		}
		left = join(op, left, right)
	}
}

// join keeps a chain of one operator flat, so that its length costs no stack.
func join(op int, left, right node) node {
	if op == 1 {
		if l, ok := left.(anyOf); ok {
			return append(l, right)
		}
		return anyOf{left, right}
	}
	if l, ok := left.(allOf); ok {
		return append(l, right)
	}
	return allOf{left, right}
}

func (p *parser) operand() (node, error) {
	if p.depth++; p.depth > maxDepth {
		return nil, p.fail(p.tok.at, "nested deeper than %d", maxDepth)
	}
	defer func() { p.depth-- }()
	switch {
	case p.tok.says("not") || p.tok.is("!"):
		if err := p.advance(); err != nil {
			return nil, err
		}
		n, err := p.operand()
		if err != nil {
			return nil, err
		}
		return inverse{n}, nil
	case p.tok.is("("):
		return p.group()
	case p.tok.class == word && p.binary() == 0:
		return p.test()
	}
	return nil, p.unexpected("a field, not, or (")
}

func (p *parser) group() (node, error) {
	open := p.tok.at
	if err := p.advance(); err != nil {
		return nil, err
	}
	n, err := p.expr(0)
	if err != nil {
		return nil, err
	}
	if p.tok.class == end {
		return nil, p.fail(open, "the ( here is not closed")
	}
	if !p.tok.is(")") {
		return nil, p.unexpected("and, or, or )")
	}
	return n, p.advance()
}

// test reads a field and what is asked of it.
func (p *parser) test() (node, error) {
	f := lookup(p.tok.text)
	if f == nil {
		e := p.fail(p.tok.at, "no field is called %s", p.tok)
		e.Hint = suggest(p.tok.text, fieldNames(), "docs/record.md and trace query --fields list them")
		return nil, e
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	op := p.tok
	switch {
	case op.class == symbol && strings.Contains(" == = != < <= > >= ~ !~ ", " "+op.text+" "):
	case op.says("in") || op.says("glob"):
		op.text = strings.ToLower(op.text)
	default:
		return present{f}, nil
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	if op.text == "in" && p.tok.is("(") {
		return p.list(f, op)
	}
	return p.compare(f, op)
}

// compare reads one value.
func (p *parser) compare(f *field, op token) (node, error) {
	v := p.tok
	if v.class != word && v.class != text {
		return nil, p.unexpected("a value; one with blanks or signs stands in quotes")
	}
	n, err := p.build(f, op, v)
	if err != nil {
		return nil, err
	}
	return n, p.advance()
}

func (p *parser) list(f *field, op token) (node, error) {
	op.text = "="
	var out anyOf
	for {
		if err := p.advance(); err != nil {
			return nil, err
		}
		n, err := p.compare(f, op)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
		if p.tok.is(")") {
			return out, p.advance()
		}
		if !p.tok.is(",") {
			return nil, p.unexpected(", or )")
		}
	}
}
