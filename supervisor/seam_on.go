//go:build agentguard_seam

package supervisor

import (
	"os"
	"strings"
)

// seams lists the layers that a test switches off to see that the canary
// notices, or, with the canary off too, that the next layer still holds.
// Only binaries built with the agentguard_seam tag read it; `version` and the
// plan name the tag.
func seams() []string {
	if v := os.Getenv("AGENTGUARD_SEAM_OFF"); v != "" {
		return strings.Split(v, ",")
	}
	return nil
}
