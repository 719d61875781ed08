package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

// The smallest limit on the way up counts, with the cgroup that has it.
func TestAbove(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"v2/user.slice/memory.max": "1000000\n", "v2/user.slice/pids.max": "max\n",
		"v2/user.slice/a.scope/memory.max": "2000000\n", "v2/user.slice/a.scope/pids.max": "50\n",
		"v2/user.slice/b.scope/pids.max": "0\n", "v2/evil/memory.max": "1\n",
		"mem/memory.limit_in_bytes": "9223372036854771712\n", "mem/x/memory.limit_in_bytes": "4096\n", "mem/x/y/memory.limit_in_bytes": "9223372036854771712\n",
		"pids/x/pids.max": "7\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	v2 := Layout{Unified: filepath.Join(dir, "v2")}
	hybrid := Layout{Unified: v2.Unified, V1: map[string]string{Memory: filepath.Join(dir, "mem"), Pids: filepath.Join(dir, "pids")}}
	for _, c := range []struct {
		name       string
		layout     Layout
		membership string
		mem, tasks Bound
	}{
		{"a scope", v2, "0::/user.slice/a.scope\n", Bound{1000000, "/user.slice"}, Bound{50, "/user.slice/a.scope"}},
		{"no task at all", v2, "0::/user.slice/b.scope\n", Bound{1000000, "/user.slice"}, Bound{1, "/user.slice/b.scope"}},
		{"the root", v2, "0::/\n", Bound{}, Bound{}},
		{"above our root", v2, "0::/../evil\n", Bound{}, Bound{}},
		{"not clean", v2, "0::/user.slice/../evil\n", Bound{}, Bound{}},
		{"nothing", v2, "", Bound{}, Bound{}},
		{"hybrid", hybrid, "5:cpu,cpuacct:/z\n3:memory:/x/y\n2:pids:/x\n0::/user.slice/a.scope\n", Bound{4096, "/x"}, Bound{7, "/x"}},
		{"v1 without the controllers", hybrid, "0::/user.slice\n", Bound{}, Bound{}},
		{"no cgroups", Layout{}, "0::/user.slice\n", Bound{}, Bound{}},
	} {
		mem, tasks, err := c.layout.Above([]byte(c.membership))
		if err != nil || mem != c.mem || tasks != c.tasks {
			t.Errorf("%s: %v %v %v", c.name, mem, tasks, err)
		}
	}
}
