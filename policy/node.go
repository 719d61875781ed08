package policy

import (
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// scalarText returns the text of a scalar as it was written (quotes and block
// indentation undone) and its YAML type; 0 when the node is no scalar.
func scalarText(n ast.Node) (string, kinds) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, isString
	case *ast.LiteralNode:
		if n.Value == nil {
			return "", isString
		}
		return n.Value.Value, isString
	case *ast.IntegerNode:
		return n.Token.Value, isInteger
	case *ast.FloatNode:
		return n.Token.Value, isNumber
	case *ast.BoolNode:
		return n.Token.Value, isBool
	case *ast.NullNode:
		if n.Token == nil || n.Token.Type == token.ImplicitNullType || n.Token.Value != "null" {
			return "", 0 // a key without a value is a slip; only the word is meant
		}
		return "null", isNull
	}
	return "", 0
}

// unwrap takes off an anchor or a tag, which are reported where the tokens are
// read. It returns false for an alias, about which nothing more can be said.
func unwrap(n ast.Node) (ast.Node, bool) {
	for range maxDepth {
		switch inner := n.(type) {
		case *ast.AnchorNode:
			n = inner.Value
		case *ast.TagNode:
			n = inner.Value
		default:
			_, alias := n.(*ast.AliasNode)
			return n, !alias
		}
	}
	return nil, false
}

// startOr is the first token of n, or at when n was left out in the text.
func startOr(n ast.Node, at *token.Token) *token.Token {
	if n == nil {
		return at
	}
	if null, ok := n.(*ast.NullNode); ok && (null.Token == nil || null.Token.Type == token.ImplicitNullType) {
		return at
	}
	if t := start(n); t != nil && t.Position != nil {
		return t
	}
	return at
}

// nodeKind names what a node is, for "expected X, got Y".
func nodeKind(n ast.Node) string {
	switch n := n.(type) {
	case nil:
		return "nothing"
	case *ast.StringNode, *ast.LiteralNode:
		text, _ := scalarText(n)
		return "the text " + quote(text)
	case *ast.IntegerNode:
		return "the number " + quote(n.Token.Value)
	case *ast.FloatNode:
		return "the number " + quote(n.Token.Value)
	case *ast.InfinityNode, *ast.NanNode:
		return "no finite number"
	case *ast.BoolNode:
		return "the truth value " + n.Token.Value
	case *ast.NullNode:
		return "nothing"
	case *ast.SequenceNode:
		return "a list"
	case ast.MapNode:
		return "a mapping"
	}
	return "something else"
}

// expected names what one value of a key may be.
func expected(k key) string {
	if l, ok := k.field.(limit); ok {
		return l.what + " or none"
	}
	var names []string
	for _, t := range []struct {
		kind kinds
		name string
	}{{isString, "text"}, {isInteger | isNumber, "a number"}, {isBool, "true or false"}} {
		if k.kinds&t.kind != 0 {
			names = append(names, t.name)
		}
	}
	return strings.Join(names, " or ")
}

// typeHint says how a value of the wrong type can be made right.
func typeHint(k key, got kinds) string {
	_, isLimit := k.field.(limit)
	switch {
	case got == 0 && k.form == one:
		return "remove the key for the default"
	case got != 0 && got != isNull && k.kinds&isString != 0 && !isLimit:
		return "quote it if it is meant as text"
	case got == 0 && k.name == "env.set":
		return `write "" for an empty value`
	}
	return ""
}

func contains(words []string, w string) bool {
	for _, x := range words {
		if x == w {
			return true
		}
	}
	return false
}
