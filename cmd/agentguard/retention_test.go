//go:build linux

package main

import (
	"slices"
	"testing"
	"time"

	"github.com/agentguard/agentguard/internal/runs"
)

// What is pruned goes by the time in the names; a directory that somebody has put beside the runs has none.
func TestPruneByName(t *testing.T) {
	young, old := runs.NewID(time.Now()), runs.NewID(time.Now().Add(-48*time.Hour))
	ids := []string{"some-backup", young, old, "0"}
	for _, tt := range []struct {
		age  time.Duration
		keep int
		want []string
	}{{24 * time.Hour, -1, []string{old}}, {0, 1, []string{old}}, {0, 0, []string{young, old}}, {72 * time.Hour, 2, nil}} {
		var gone []string
		err := prune(slices.Clone(ids), tt.age, tt.keep, func(id string) error { gone = append(gone, id); return nil }, func(string, error) error { return nil })
		if err != nil || !slices.Equal(gone, tt.want) {
			t.Errorf("%v, keep %d: %q, %v", tt.age, tt.keep, gone, err)
		}
	}
}
