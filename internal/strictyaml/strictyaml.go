// Package strictyaml reads the small files in which an administrator decides about
// agentguard itself. What such a file says is done, or it is refused.
package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/token"
)

// MaxBytes is the size of the largest file that is read.
const MaxBytes = 64 << 10

// Decode reads all of r into v. Unknown and duplicate keys are errors, and so is a second
// document, which the decoder would leave unread. An empty file says nothing.
func Decode(r io.Reader, v any) error {
	b, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
	if err != nil {
		return err
	}
	if len(b) > MaxBytes {
		return fmt.Errorf("the file is larger than %d bytes", MaxBytes)
	}
	if more(b) {
		return errors.New("the file has a second document, after ---; keep one")
	}
	if err := yaml.NewDecoder(bytes.NewReader(b), yaml.Strict()).Decode(v); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// more reports whether anything stands behind the first document.
func more(b []byte) bool {
	begun, ended := false, false
	for _, t := range lexer.Tokenize(string(b)) {
		switch t.Type {
		case token.CommentType:
		case token.DocumentHeaderType:
			begun, ended = true, ended || begun
		case token.DocumentEndType:
			begun, ended = true, true
		default:
			if ended {
				return true
			}
			begun = true
		}
	}
	return false
}
