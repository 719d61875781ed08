//go:build agentguard_seam

package supervisor

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
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

// commitFault kills the committing process (SIGKILL) before the act whose number
// AGENTGUARD_SEAM_KILL_COMMIT is.
func commitFault() (env []string, step func(name string)) {
	const name = "AGENTGUARD_SEAM_KILL_COMMIT"
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		return []string{}, nil
	}
	return []string{name + "=" + strconv.Itoa(n)}, func(string) {
		if n--; n < 0 {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {} // the signal is on its way
		}
	}
}
