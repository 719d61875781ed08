// Package testenv is how a test says that this machine lacks what it needs.
//
// Every skip of the tree goes through [Missing], so that CI can forbid them:
// a list of mechanisms in AGENTGUARD_TEST_REQUIRE ("landlock,bpf,cgroup,root",
// or "all") turns the skips for want of these into failures. A skip that
// nobody sees is a test that nobody runs.
package testenv

import (
	"os"
	"strings"
	"testing"
)

// Missing ends the test because what (one word: "landlock", "bpf", "cgroup",
// "userns", "root") is not to be had here; why says what exactly is missing.
// The test is skipped, or failed where AGENTGUARD_TEST_REQUIRE demands what.
func Missing(t testing.TB, what, why string) {
	t.Helper()
	if required(os.Getenv("AGENTGUARD_TEST_REQUIRE"), what) {
		t.Fatalf("AGENTGUARD_TEST_REQUIRE demands %s: %s", what, why)
	}
	t.Skipf("no %s here: %s", what, why)
}

// Beyond ends the test because of something that a kernel or distribution may lack
// with nothing of ours untested on it, such as a file system. "all" does not demand
// it, its own name does.
func Beyond(t testing.TB, what, why string) {
	t.Helper()
	if list := os.Getenv("AGENTGUARD_TEST_REQUIRE"); list != "all" && required(list, what) {
		t.Fatalf("AGENTGUARD_TEST_REQUIRE demands %s: %s", what, why)
	}
	t.Skipf("no %s here: %s", what, why)
}

// Root ends the test unless it runs as root.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "root", "not running as root")
	}
}

func required(list, what string) bool {
	for _, w := range strings.Split(list, ",") {
		if w == what || w == "all" {
			return true
		}
	}
	return false
}
