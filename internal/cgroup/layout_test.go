package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentguard/agentguard/internal/testenv"
)

const (
	mountV2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"

	mountHybrid = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:12 master:3 - cgroup cgroup rw,cpu,cpuacct
36 31 0:33 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
	// docker on a v1 host, and on a v2 host with --cgroupns=host
	mountContainer = `700 690 0:33 /docker/0a1b /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory
701 690 0:28 /system.slice/docker-0a1b.scope /sys/fs/cgroup/unified ro - cgroup2 cgroup rw
`
)

func TestParseMountinfo(t *testing.T) {
	for name, c := range map[string]struct {
		in, mode string
		want     Layout
	}{
		"v2":     {mountV2, "v2", Layout{Unified: "/sys/fs/cgroup"}},
		"hybrid": {mountHybrid, "hybrid", Layout{Unified: "/sys/fs/cgroup/unified", V1: map[string]string{Memory: "/sys/fs/cgroup/memory", Pids: "/sys/fs/cgroup/pids"}}},
		"v1 alone": {
			strings.ReplaceAll(mountHybrid, "- cgroup2", "- tmpfs"), "v1",
			Layout{V1: map[string]string{Memory: "/sys/fs/cgroup/memory", Pids: "/sys/fs/cgroup/pids"}},
		},
		"none":             {"22 1 8:1 / / rw - ext4 /dev/root rw\n", "none", Layout{}},
		"part of a tree":   {mountContainer, "none", Layout{}},
		"the first counts": {mountV2 + "90 23 0:28 / /mnt rw - cgroup2 none rw\n", "v2", Layout{Unified: "/sys/fs/cgroup"}},
		"one hierarchy for two": {
			mountV2 + "50 23 0:50 / /mnt/both rw - cgroup none rw,memory,pids\n", "hybrid",
			Layout{Unified: "/sys/fs/cgroup", V1: map[string]string{Memory: "/mnt/both", Pids: "/mnt/both"}},
		},
		"hostile names": {
			`60 23 0:60 / /tmp/a\040-\040cgroup2\040x\040y rw - tmpfs - cgroup2 rw` + "\n" +
				`61 23 0:28 / /a\040b\134040\043\011\012c rw - cgroup2 none rw` + "\n", "v2",
			Layout{Unified: "/a b\\040#\t\nc"},
		},
		"broken": {"\n \n31 23 0:28 / - cgroup2 cgroup2 rw\n31 23 0:28 / /x rw - cgroup2\nx - y z\n - \n", "none", Layout{}},
		"empty":  {"", "none", Layout{}},
	} {
		got := Parse([]byte(c.in))
		if c.want.V1 == nil {
			c.want.V1 = map[string]string{}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got.Mode() != c.mode {
			t.Errorf("%s: mode %s, want %s", name, got.Mode(), c.mode)
		}
	}
}

func FuzzParseMountinfo(f *testing.F) {
	f.Add(mountHybrid)
	f.Add(mountContainer)
	f.Fuzz(func(t *testing.T, in string) {
		l := Parse([]byte(in))
		if l.Unified != "" && !strings.Contains(in, "cgroup2") {
			t.Errorf("a v2 tree out of nothing: %q", l.Unified)
		}
	})
}

func TestParent(t *testing.T) {
	p := testParent(t)
	l := detect(t)
	if got := filepath.Dir(p.Path); got != l.Unified {
		t.Errorf("parent is in %s, not in %s", got, l.Unified)
	}
	root, err := cgroupID(l.Unified)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[bool]int{true: 2, false: 0}[root == hierarchyRoot]; p.Level != want {
		t.Errorf("level %d, want %d (root has id %d)", p.Level, want, root)
	}
	for _, c := range []string{Memory, Pids} {
		missing := strings.Contains(strings.Join(p.Missing, " "), c)
		on := strings.Contains(content(t, p.Path, "cgroup.subtree_control"), c)
		if v1 := p.V1[c] != ""; missing && (on || v1) || !missing && on == v1 {
			t.Errorf("%s: missing %v, on in v2 %v, v1 %q", c, missing, on, p.V1[c])
		}
	}
	again, err := l.Parent(filepath.Base(p.Path))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p, again, cmp.AllowUnexported(Parent{})); diff != "" {
		t.Errorf("the second time (-first +second):\n%s", diff)
	}
}

func TestParentPrefersSlice(t *testing.T) {
	testenv.Root(t)
	l := detect(t)
	name := testenv.CgroupName()
	slice := filepath.Join(l.Unified, name+".slice")
	if err := os.Mkdir(slice, 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := l.Parent(name)
	if err != nil {
		os.Remove(slice)
		t.Fatal(err)
	}
	defer removeParent(t, p)
	if p.Path != slice {
		t.Errorf("parent is %s", p.Path)
	}
}

func TestParentRefuses(t *testing.T) {
	testenv.Root(t)
	l := detect(t)
	for name, l := range map[string]Layout{"no v2": {V1: l.V1}, "no cgroup2 there": {Unified: t.TempDir()}} {
		if _, err := l.Parent("x"); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	dir := filepath.Join(l.Unified, testenv.CgroupName())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(dir)
	for name, change := range map[string]func() error{
		"a user's":       func() error { return os.Chown(dir, 65534, -1) },
		"group-writable": func() error { return errors.Join(os.Chown(dir, 0, -1), os.Chmod(dir, 0o775)) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Parent(filepath.Base(dir)); err == nil || !strings.Contains(err.Error(), "only uid 0 can write") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// enable, on files that only look like cgroups: what it asks for and reports.
func TestEnable(t *testing.T) {
	for name, c := range map[string]struct {
		root, parent string // controllers that each has
		procs        string // in each
		want         []string
	}{
		"all":              {"cpuset cpu io memory pids", "cpu memory pids", "", []string{Memory, Pids, "cpu"}},
		"hybrid":           {"", "", "", nil},
		"no memory":        {"cpu pids", "cpu pids", "", []string{Pids, "cpu"}},
		"not the root":     {"cpu memory pids", "pids", "", []string{Pids}},
		"parent populated": {"cpu memory pids", "cpu memory pids", "1234\n", nil},
	} {
		root := t.TempDir()
		parent := filepath.Join(root, "p")
		if err := os.Mkdir(parent, 0o755); err != nil {
			t.Fatal(err)
		}
		for dir, have := range map[string]string{root: c.root, parent: c.parent} {
			for file, s := range map[string]string{"cgroup.controllers": have + "\n", "cgroup.subtree_control": "\n", "cgroup.procs": c.procs} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(s), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		on, err := enable(root, parent)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(strings.Join(c.want, " "), strings.Join(on, " ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if _, err := enable(t.TempDir(), t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no cgroup files: %v", err)
	}
}

// A parent that holds processes cannot have v2 controllers on: they are missing,
// and a run is possible all the same.
func TestParentWithProcesses(t *testing.T) {
	testenv.Root(t)
	l := detect(t)
	dir := filepath.Join(l.Unified, testenv.CgroupName())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	leaf := &Leaf{Path: dir}
	t.Cleanup(func() { endLeaf(t, leaf) })
	if err := leaf.open(); err != nil {
		t.Fatal(err)
	}
	startWaiting(t, act(t, leaf, "wait"))
	p, err := l.Parent(filepath.Base(dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{Memory, Pids} {
		missing := strings.Contains(strings.Join(p.Missing, " "), c)
		if missing != (l.V1[c] == "") {
			t.Errorf("%s: missing %v, v1 %q", c, missing, l.V1[c])
		}
		if dir := p.V1[c]; dir != "" {
			t.Cleanup(func() { os.Remove(dir) })
		}
	}
	startWaiting(t, act(t, newLeaf(t, p, Limits{Memory: 1 << 26, Tasks: 50}), "wait"))
}
