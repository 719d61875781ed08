package dispatch

import (
	"testing"

	"github.com/agentguard/agentguard/internal/action"
)

// A credential is found in texts, keys and numbers at any depth; a short one in no text by chance.
func TestEchoes(t *testing.T) {
	for _, c := range []struct {
		secret string
		answer any
		want   bool
	}{
		{"20261130", []any{map[string]any{"a": 1202611301.0}}, true},
		{"20261130", map[string]any{"20261130": nil}, true},
		{"20261130", []any{"2026-11-30", true, nil, 2026.0}, false},
		{"k", []any{"a text that has none of it"}, false},
		{"", "anything", false},
	} {
		if got := echoes(c.answer, action.Echoes([]byte(c.secret))); got != c.want {
			t.Errorf("%q in %v: %v", c.secret, c.answer, got)
		}
	}
}
