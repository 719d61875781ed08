package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/cgroup"
)

// tree is what the root of the v2 tree says about controllers. A run switches
// them on; doctor only reads whether that can work.
type tree struct {
	have, on []string // cgroup.controllers, cgroup.subtree_control
	busy     bool     // it is no hierarchy's root, and processes live in it: nothing can be switched on
}

func readTree(unified string) (tree, error) {
	var t tree
	if unified == "" {
		return t, errors.New("no cgroup v2 hierarchy is mounted")
	}
	have, err := os.ReadFile(filepath.Join(unified, "cgroup.controllers"))
	if err != nil {
		return t, err
	}
	on, err := os.ReadFile(filepath.Join(unified, "cgroup.subtree_control"))
	if err != nil {
		return t, err
	}
	t.have, t.on = strings.Fields(string(have)), strings.Fields(string(on))
	if leafLevel(unified) == 0 {
		procs, err := os.ReadFile(filepath.Join(unified, "cgroup.procs"))
		t.busy = err == nil && len(procs) > 0
	}
	return t, nil
}

func (x *examination) limits() {
	const remedy = "mount one (mount -t cgroup2 none /sys/fs/cgroup/unified beside v1); in a container, a writable one of its own " +
		"(docker: --cgroupns=private, and /sys/fs/cgroup read-write)"
	b := &x.birth
	mode := b.layout.Mode()
	err := b.treeErr
	switch {
	case b.layoutErr != nil:
		err = b.layoutErr
	case b.layout.Unified == "":
		err = errors.New("no cgroup v2 hierarchy is mounted (layout: " + mode + ")")
	}
	x.try("limits", "cgroup tree", fmt.Sprintf("layout %s: cgroups can be made in and removed from the v2 tree", mode), err, cellMissing, remedy)
	t, err := readTree(b.layout.Unified)
	if err != nil {
		for _, layer := range []string{"memory", "tasks", "cpu"} {
			x.say("limits", layer, cellUnknown, "there is no cgroup tree to ask: see limits cgroup tree", "")
		}
		return
	}
	x.controller(t, "memory", cgroup.Memory, "process.max_memory_mb", "CONFIG_MEMCG=y")
	x.controller(t, "tasks", cgroup.Pids, "process.max_subprocesses", "CONFIG_CGROUP_PIDS=y")
	x.cpu(t)
}

// controller tells whether one limit can be set, and where.
func (x *examination) controller(t tree, layer, name, clause, option string) {
	b := &x.birth
	if _, v1 := b.layout.V1[name]; v1 && !slices.Contains(t.have, name) {
		err := x.asRoot(func() error { return b.v1Err[name] })
		x.try("limits", layer, "limited by the v1 hierarchy of the "+name+" controller", err, cellMissing,
			"make that hierarchy writable to agentguard, or accept: --allow-gap "+clause)
		return
	}
	ok, finding, remedy := t.judge(name, option)
	if !ok {
		x.say("limits", layer, cellMissing, finding, remedy+"; or accept: --allow-gap "+clause)
		return
	}
	x.say("limits", layer, cellOK, finding, "")
}

// judge tells whether a run can switch a controller on below the root of the tree.
func (t tree) judge(name, option string) (ok bool, finding, remedy string) {
	switch {
	case slices.Contains(t.on, name):
		return true, "limited by the " + name + " controller of v2", ""
	case !slices.Contains(t.have, name):
		return false, "this host has no " + name + " controller for runs",
			"remove " + name + " from cgroup_disable= on the kernel command line, or delegate it (systemd: Delegate=yes), or a kernel with " + option
	case t.busy:
		return false, "the " + name + " controller cannot be switched on: processes live in the root of this cgroup tree",
			"move them into a cgroup below it before agentguard starts (mkdir init; a line for each process into init/cgroup.procs)"
	}
	return true, "limited by the " + name + " controller of v2, which the first run switches on", ""
}

// cpu time is counted in every v2 cgroup and judged by the supervisor; the
// controller only adds that a run of many tasks weighs as one.
func (x *examination) cpu(t tree) {
	if ok, _, _ := t.judge("cpu", ""); ok {
		x.say("limits", "cpu", cellOK, "CPU time is counted by the kernel and ended by the supervisor; a run weighs as one task group", "")
		return
	}
	x.say("limits", "cpu", cellOK, "CPU time is counted by the kernel and ended by the supervisor; without the cpu controller in v2, a run of many tasks weighs as many", "")
}

// leftBehind names the leaves of runs whose supervisor does not live any more,
// and removes what a killed doctor made.
func (x *examination) leftBehind() (dead []string, err error) {
	roots := []string{x.birth.layout.Unified}
	for _, p := range x.birth.layout.V1 {
		roots = append(roots, p)
	}
	slices.Sort(roots)
	for _, root := range slices.Compact(roots) {
		if root == "" {
			continue
		}
		entries, rerr := os.ReadDir(root)
		err = errors.Join(err, rerr)
		for _, e := range entries {
			dir := filepath.Join(root, e.Name())
			switch pid, probe := strings.CutPrefix(e.Name(), probePrefix); {
			case probe && gone(sample("/proc/"+pid+"/stat")):
				if serr := removeProbe(dir); serr != nil {
					dead = append(dead, dir)
				}
			case e.Name() == cgroup.DefaultParent, e.Name() == cgroup.DefaultParent+".slice":
				dead = append(dead, deadLeaves(dir)...)
			}
		}
	}
	return dead, err
}

// gone reports whether a process is dead, by its proc_pid_stat(5); a zombie is.
// The name in parentheses may hold anything.
func gone(stat []byte) bool {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	return len(fields) == 0 || string(fields[0]) == "Z" || string(fields[0]) == "X"
}

// removeProbe removes a cgroup of tryRun's and its leaf. Processes in it are the
// kernel's to count: then it stays.
func removeProbe(dir string) error {
	leaves, _ := filepath.Glob(filepath.Join(dir, "*.run"))
	for _, d := range append(leaves, dir) {
		if err := unix.Rmdir(d); err != nil {
			return &os.PathError{Op: "rmdir", Path: d, Err: err}
		}
	}
	return nil
}

// deadLeaves are the leaves below a parent whose supervisor's lock is free. A
// lock is held from before its leaf is made until after that is removed.
func deadLeaves(parent string) (dead []string) {
	leaves, _ := filepath.Glob(filepath.Join(parent, "*.run"))
	for _, l := range leaves {
		if !alive(runtimeDir(), strings.TrimSuffix(filepath.Base(l), ".run")) {
			dead = append(dead, l)
		}
	}
	return dead
}
