//go:build linux

package main

import (
	"slices"
	"strconv"
	"testing"

	"github.com/agentguard/agentguard/internal/changes"
)

// A screen that a command has filled still says that there is something to look at beyond it.
func TestRestOfTheScreen(t *testing.T) {
	rest := make([]changes.Change, 5)
	rest[0].Danger.Why, rest[1].Danger.Why, rest[2].Danger.Why = "CI runs it", "it is a new executable", "it is a new executable"
	want := []string{"and 5 more", "  of them 1: CI runs it", "  of them 2: it is a new executable"}
	if got := restLines(rest); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	for i := range 100 {
		c := changes.Change{Danger: changes.Danger{Why: strconv.Itoa(i)}}
		rest = append(rest, c)
	}
	if got := restLines(rest); len(got) != most+2 || restLines(nil) != nil {
		t.Errorf("%q", got)
	}
}
