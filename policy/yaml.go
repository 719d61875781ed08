package policy

import (
	"bytes"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// maxDepth bounds flow nesting, and chains of nested things in one line, so
// that the recursive parser cannot run out of stack (which Go cannot recover).
const maxDepth = 32

// maxTokens bounds the work of the parser, which is quadratic in the number of
// entries of one list or mapping (a minute for 1 MiB of "a: b"). At this bound
// it takes a quarter of a second; the largest useful policy has a few hundred.
const maxTokens = 32768

// document turns bytes into the body of the one document, or returns nil
// after it has reported why there is none.
func (r *reader) document(src []byte) ast.Node {
	src = bytes.TrimPrefix(src, []byte("\xef\xbb\xbf")) // byte order mark of some editors
	if !r.readable(src) {
		return nil
	}
	tokens := lexer.Tokenize(string(src))
	if len(tokens) > maxTokens {
		r.report(tokens[maxTokens], "", wrong("", "the file has more than %d words and signs", maxTokens))
		return nil
	}
	end, plain := r.checkTokens(tokens)
	if end > 0 { // what follows the first document is an error already
		lines := strings.SplitAfter(string(src), "\n")
		tokens = lexer.Tokenize(strings.Join(lines[:min(end-1, len(lines))], ""))
	}
	if tooDeep := deepest(tokens); tooDeep != nil {
		r.report(tooDeep, "", wrong("", "nested too deeply"))
		return nil
	}
	file, err := parseTokens(tokens)
	if err != nil {
		if plain { // else the cause is reported already
			r.syntax(err)
		}
		return nil
	}
	for _, doc := range file.Docs {
		if doc.Body != nil && doc.Body.Type() != ast.DirectiveType && doc.Body.Type() != ast.CommentType {
			body, _ := unwrap(doc.Body)
			return body
		}
	}
	if plain {
		r.fail(1, 1, wrong("start with "+r.root+":", "the file is empty"))
	}
	return nil
}

// readable checks what can be said of the bytes alone.
func (r *reader) readable(src []byte) bool {
	if len(src) > MaxBytes {
		r.fail(1, 1, wrong("", "the file is larger than %d bytes", MaxBytes))
		return false
	}
	line, col := 1, 1
	for len(src) > 0 {
		c, n := utf8.DecodeRune(src)
		switch {
		case c == 0:
			r.fail(line, col, wrong("", "the file contains a NUL byte"))
			return false
		case c == utf8.RuneError && n == 1:
			r.fail(line, col, wrong("save it as UTF-8", "the file is not UTF-8 text"))
			return false
		case c == '\r' && !bytes.HasPrefix(src, []byte("\r\n")):
			r.fail(line, col, wrong("end lines with LF or CR LF", "the file contains a carriage return inside a line"))
			return false
		case isControl(c) && c != '\n' && c != '\r' && c != '\t':
			r.fail(line, col, wrong("", "the file contains the control character U+%04X", c))
			return false
		}
		src, col = src[n:], col+1
		if c == '\n' {
			line, col = line+1, 1
		}
	}
	return true
}

// checkTokens refuses what makes a document say something else than it shows.
// It returns the line of a second document (0 when there is none) and whether
// all was plain.
func (r *reader) checkTokens(tokens token.Tokens) (second int, plain bool) {
	plain, content, headers, directive := true, false, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.CommentType:
			continue
		case token.DirectiveType:
			directive = t.Position.Line
		case token.DocumentHeaderType:
			headers++
			if content || headers > 1 {
				r.report(t, "", wrong("keep one; give several files with several -p", "a policy is one document"))
				return t.Position.Line, false
			}
			continue
		case token.DocumentEndType:
			headers++
			continue
		}
		if headers > 0 && content && t.Prev != nil && t.Prev.Type == token.DocumentEndType {
			r.report(t, "", wrong("keep one; give several files with several -p", "a policy is one document"))
			return t.Position.Line, false
		}
		content = content || t.Position.Line != directive
		if p := refusedToken(t); p != nil {
			r.report(t, "", p)
			plain = false
		}
	}
	return 0, plain
}

// refusedToken names the YAML features that a policy does not have.
func refusedToken(t *token.Token) *problem {
	switch t.Type {
	case token.AnchorType:
		return wrong("write the value out", "anchors (&) are not allowed in a policy")
	case token.AliasType:
		return wrong("write the value out; quote a text that begins with *", "aliases (*) are not allowed in a policy")
	case token.MergeKeyType:
		return wrong("write the keys out", "merge keys (<<) are not allowed in a policy")
	case token.TagType:
		entry, _, _ := strings.Cut(t.Value, "]") // in a flow list the bracket is read as part of the tag
		return wrong("to remove an entry, quote it: "+quote(entry), "tags (!) are not allowed in a policy")
	case token.DirectiveType:
		return wrong("quote a text that begins with %", "directives (%%) are not allowed in a policy")
	}
	return nil
}

// deepest returns the first token that is nested beyond maxDepth.
func deepest(tokens token.Tokens) *token.Token {
	flow, run, line, wraps := 0, 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			run, line = 0, t.Position.Line
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow, run = flow-1, 0
		case token.CollectEntryType:
			run = 0
		case token.SequenceEntryType, token.MappingKeyType, token.MappingValueType:
			run++
		case token.TagType, token.AnchorType, token.DirectiveType:
			wraps++
		}
		if flow > maxDepth || run > maxDepth || wraps > maxDepth {
			return t
		}
	}
	return nil
}

// parseTokens calls the YAML parser, which has been seen to panic on bytes
// that no person would write.
func parseTokens(tokens token.Tokens) (f *ast.File, err error) {
	defer func() {
		if recover() != nil {
			f, err = nil, errors.New("this is not YAML")
		}
	}()
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

// syntax reports an error of the YAML parser at the place that it names.
func (r *reader) syntax(err error) {
	var placed interface {
		GetToken() *token.Token
		GetMessage() string
	}
	if !errors.As(err, &placed) || placed.GetToken() == nil {
		r.fail(1, 1, wrong("", "this is not YAML"))
		return
	}
	hint := ""
	if strings.Contains(placed.GetMessage(), `'\t'`) || strings.Contains(placed.GetMessage(), "'\t'") {
		hint = "indent with spaces"
	}
	r.report(placed.GetToken(), "", wrong(hint, "%s", strings.Trim(quote(placed.GetMessage()), `"`)))
}
