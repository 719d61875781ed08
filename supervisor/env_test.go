package supervisor

import (
	"slices"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/policy"
)

func TestBuildEnv(t *testing.T) {
	view, err := mergeView(smallBase, grantsOf("/opt/tool ro"))
	must(t, err)
	base := map[string]string{
		"HOME": Home, "TMPDIR": "/tmp", "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/sh", "PATH": defaultPath,
	}
	for _, c := range []struct {
		name   string
		p      policy.Policy
		caller []string
		bash   bool
		want   map[string]string // differences from the base
	}{
		{name: "nothing passes by itself", caller: []string{
			"LANG=C", "AWS_SECRET_ACCESS_KEY=x", "SSH_AUTH_SOCK=/s", "LD_PRELOAD=/x.so", "HOME=/root", "USER=root", "SHELL=/bin/evil", "TMPDIR=/var/lib", "=x", "junk",
		}},
		{name: "bash", bash: true, want: map[string]string{"SHELL": "/bin/bash"}},
		{name: "PATH", caller: []string{"PATH=/usr/bin:/root/bin:relative::/opt/tool/bin:.:/usr/bin:/bin:/usr/../root"}, want: map[string]string{"PATH": "/usr/bin:/opt/tool/bin:/bin"}},
		{name: "a useless PATH", caller: []string{"PATH=/root/bin:/nowhere"}},
		{
			name: "allowed names and prefixes", p: policy.Policy{EnvAllow: []policy.Text{textOf("LANG"), textOf("LC_*"), textOf("GONE")}},
			caller: []string{"LANG=de=DE", "LC_ALL=C", "LC_X=", "LC=no", "LANGUAGE=no"}, want: map[string]string{"LANG": "de=DE", "LC_ALL": "C", "LC_X": ""},
		},
		{name: "the last of two equal names", p: policy.Policy{EnvAllow: []policy.Text{textOf("A")}}, caller: []string{"A=1", "A=2"}, want: map[string]string{"A": "2"}},
		{
			name: "set wins over the caller and over ours", p: policy.Policy{EnvAllow: []policy.Text{textOf("A")}, EnvSet: []policy.Env{{Name: "A", Value: "set"}, {Name: "HOME", Value: "/tmp"}, {Name: "E"}}},
			caller: []string{"A=caller"}, want: map[string]string{"A": "set", "HOME": "/tmp", "E": ""},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := map[string]string{}
			for _, m := range []map[string]string{base, c.want} {
				for k, v := range m {
					want[k] = v
				}
			}
			got := buildEnv(&c.p, c.caller, view, c.bash, &findings{})
			if !slices.IsSorted(got) || len(got) != len(want) {
				t.Errorf("%d variables, want %d: %q", len(got), len(want), got)
			}
			for _, kv := range got {
				name, value, _ := strings.Cut(kv, "=")
				if w, ok := want[name]; !ok || w != value {
					t.Errorf("%s, want %q", kv, w)
				}
			}
		})
	}
}

func TestCandidates(t *testing.T) {
	for _, c := range []struct {
		argv0, path string
		want        string
	}{
		{"/bin/sh", "PATH=/usr/bin", "/bin/sh"},
		{"./x", "PATH=/usr/bin", "./x"},
		{"a/b", "PATH=/usr/bin", "a/b"},
		{"sh", "PATH=/usr/bin:/bin", "/usr/bin/sh /bin/sh"},
		{"sh", "PATH=:/bin", "./sh /bin/sh"},
		{"sh", "PATH=", "./sh"},
		{"sh", "PATHS=/x", "./sh"},
	} {
		if got := strings.Join(candidates(c.argv0, []string{"A=1", c.path}), " "); got != c.want {
			t.Errorf("%s with %s: %q, want %q", c.argv0, c.path, got, c.want)
		}
	}
}
