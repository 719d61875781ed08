package supervisor

import (
	"testing"

	"github.com/agentguard/agentguard/policy"
)

func TestChooseUpper(t *testing.T) {
	asked := policy.Source{Flag: "--output"}
	const gib = int64(1) << 30
	for name, c := range map[string]struct {
		upper   string
		size    int64 // 0: none
		by      policy.Source
		memory  int64
		host    Host
		want    string
		missing bool
	}{
		"ram":                       {"ram", 100 * gib, asked, gib, Host{memAvailable: gib, diskFree: 500 * gib}, "ram", false},
		"disk":                      {"disk", gib, policy.Source{}, gib, Host{memAvailable: 100 * gib, diskFree: 500 * gib}, "disk", false},
		"disk without a size":       {"disk", 0, asked, gib, Host{diskFree: 500 * gib}, "ram", true},
		"disk that cannot be":       {"disk", gib, asked, gib, Host{noDisk: "no"}, "ram", true},
		"auto, enough memory":       {"auto", gib, asked, gib, Host{memAvailable: 3 * gib, diskFree: 500 * gib}, "ram", false},
		"auto, memory short":        {"auto", 2 * gib, asked, 8 * gib, Host{memAvailable: 3 * gib, diskFree: 500 * gib}, "disk", false},
		"auto, above its own limit": {"auto", 2 * gib, asked, gib, Host{memAvailable: 30 * gib, diskFree: 500 * gib}, "disk", false},
		"auto, no memory limit":     {"auto", 2 * gib, asked, -1, Host{memAvailable: 30 * gib, diskFree: 500 * gib}, "ram", false},
		"auto, the default size":    {"auto", 2 * gib, policy.Source{}, gib, Host{memAvailable: gib, diskFree: 500 * gib}, "ram", false},
		"auto, disk full":           {"auto", 2 * gib, asked, gib, Host{memAvailable: gib, diskFree: 2 * gib}, "ram", false},
		"auto, no disk":             {"auto", 2 * gib, asked, gib, Host{memAvailable: gib, noDisk: "no"}, "ram", false},
	} {
		p := &policy.Policy{
			Upper:          policy.Text{Value: c.upper},
			MaxOutputBytes: policy.Limit{N: c.size, Unlimited: c.size == 0, Source: c.by},
			MaxMemory:      policy.Limit{N: c.memory, Unlimited: c.memory < 0},
		}
		missing, remedy := upperGap(p, &c.host)
		if got := chooseUpper(p, &c.host); got != c.want || (missing != "") != c.missing || (remedy != "") != c.missing {
			t.Errorf("%s: %s, %q", name, got, missing)
		}
	}
	if memAvailable() <= 0 {
		t.Error("this machine has no memory")
	}
}
