package cgroup

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
)

// The smallest share on the way up counts, whatever the periods, and of each device the smallest of each kind.
func TestRatesAbove(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"user/cpu.max": "50000 100000\n", "user/a/cpu.max": "max 100000\n", "user/b/cpu.max": "4000 10000\n", "user/c/cpu.max": "200000 100000\n",
		"user/io.max":   "8:0 rbps=1000 wbps=max riops=max wiops=7\n8:16 rbps=max wbps=max riops=max wiops=max\n",
		"user/a/io.max": "8:0 rbps=2000 wbps=500 riops=max wiops=max\n7:0 rbps=max wbps=1 riops=max wiops=max\n",
		"bad/cpu.max":   "x 1\n", "bad2/cpu.max": "1 0\n", "bad3/io.max": "8:0 rbps=-1\n", "bad4/cpu.max": "1\n",
		"evil/cpu.max": "1 100000\n", "quiet/x": "",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l := Layout{Unified: dir}
	above := []string{"8:0 rbps=1000 wiops=7"}
	for _, c := range []struct {
		membership string
		want       Rates
	}{
		{"0::/user/a\n", Rates{CPU: "50000 100000", CPUAt: "/user", IO: []string{"7:0 wbps=1", "8:0 rbps=1000 wbps=500 wiops=7"}, IOAt: []string{"/user/a", "/user"}}},
		{"0::/user/b\n", Rates{CPU: "4000 10000", CPUAt: "/user/b", IO: above, IOAt: []string{"/user"}}},
		{"0::/user/c\n", Rates{CPU: "50000 100000", CPUAt: "/user", IO: above, IOAt: []string{"/user"}}},
		{"3:cpu:/user/b\n0::/quiet\n", Rates{}},
		{"0::/\n", Rates{}},
		{"0::/../evil\n", Rates{}},
		{"0::/user/../evil\n", Rates{}},
		{"", Rates{}},
	} {
		got, err := l.RatesAbove([]byte(c.membership))
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %+v, not %+v: %v", c.membership, got, c.want, err)
		}
	}
	for _, bad := range []string{"bad", "bad2", "bad3", "bad4"} {
		if got, err := l.RatesAbove([]byte("0::/" + bad + "\n")); err == nil {
			t.Errorf("%s: %+v", bad, got)
		}
	}
	if got, err := (Layout{}).RatesAbove([]byte("0::/user\n")); err != nil || got.CPU != "" {
		t.Error(got, err)
	}
}

// A leaf has the rates of a caller, from a cgroup of the kernel's own to its files.
func TestLeafRates(t *testing.T) {
	p := testParent(t)
	have, err := words(filepath.Dir(p.Path), "cgroup.controllers")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(have, "cpu") || !slices.Contains(have, "io") {
		if _, err := p.New("x", Limits{Rates: Rates{CPU: "50000 100000"}}, 0); err == nil || !strings.Contains(err.Error(), "cpu") {
			t.Errorf("a rate that cannot be kept: %v", err)
		}
		if left, _ := filepath.Glob(p.Path + "/*.run"); len(left) > 0 {
			t.Errorf("%q is left", left)
		}
		testenv.Beyond(t, "v2-rates", "cpu and io are not controllers of v2 here")
	}
	rates := Rates{CPU: "20000 50000"}
	if dev := someDisk(); dev != "" {
		rates.IO = []string{dev + " rbps=1048576 wiops=100"}
	}
	leaf, err := p.New("x", Limits{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := leaf.Remove(0); err != nil {
			t.Error(err)
		}
	}()
	if err := p.Bound(leaf, Limits{Rates: rates}, 0); err != nil {
		t.Fatal(err)
	}
	self := "0::" + strings.TrimPrefix(leaf.Path, strings.TrimSuffix(layoutOf(t).Unified, "/")) + "\n"
	got, err := layoutOf(t).RatesAbove([]byte(self))
	if err != nil || got.CPU != rates.CPU || !slices.Equal(got.IO, rates.IO) {
		t.Errorf("%+v of %+v: %v", got, rates, err)
	}
}

func layoutOf(t *testing.T) Layout {
	t.Helper()
	l, err := Detect()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// someDisk is the number of a whole disk, which io.max takes; "" where there is none.
func someDisk() string {
	list, _ := filepath.Glob("/sys/block/*/dev")
	for _, path := range list {
		if b, err := os.ReadFile(path); err == nil && !strings.Contains(path, "/loop") {
			return strings.TrimSpace(string(b))
		}
	}
	return ""
}
