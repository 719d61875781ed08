package testenv

import "testing"

// spy is a test that notes how it was ended.
type spy struct {
	testing.TB
	ended string
}

func (s *spy) Helper()               {}
func (s *spy) Fatalf(string, ...any) { s.ended = "failed"; panic(s) }
func (s *spy) Skipf(string, ...any)  { s.ended = "skipped"; panic(s) }

func TestMissing(t *testing.T) {
	for list, want := range map[string]string{
		"":             "skipped",
		"cgroup":       "skipped",
		"bpfish":       "skipped",
		"bpf":          "failed",
		"landlock,bpf": "failed",
		"all":          "failed",
	} {
		t.Setenv("AGENTGUARD_TEST_REQUIRE", list)
		s := &spy{TB: t}
		func() {
			defer func() { _ = recover() }()
			Missing(s, "bpf", "a test says so")
		}()
		if s.ended != want {
			t.Errorf("AGENTGUARD_TEST_REQUIRE=%q: %q, want %q", list, s.ended, want)
		}
	}
}
