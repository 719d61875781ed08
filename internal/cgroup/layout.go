// Package cgroup makes and removes the leaf cgroup of a run, sets its limits
// and reads what it used.
//
// It works on pure v2, on v1 with an extra v2 tree without controllers
// (hybrid), and where controllers are missing. The v2 tree is always needed:
// births, kills, CPU accounting and the BPF programs go by it. On hybrid hosts
// a run has a leaf of the same name in the v1 hierarchies that limit it.
//
//	UNIFIED/agentguard/ID.run    v2: birth, kill, cpu.stat; limits on pure v2
//	MEMORY/agentguard/ID.run     v1, hybrid only: the memory limit
//	PIDS/agentguard/ID.run       v1, hybrid only: the task limit
//
// A leaf is always fresh. On some kernels (seen on 6.18, not on 6.1, 6.12 and
// 7.3) a process that is cloned into a cgroup that was ever killed with
// cgroup.kill dies at once, and so does one cloned by a caller in such a cgroup,
// wherever to. So no leaf is used twice, nothing is born into one after
// [Leaf.Kill], and a caller whose births die falls back to [Leaf.Enter].
//
// Sources: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of the kernel.
package cgroup

import (
	"strings"

	"github.com/agentguard/agentguard/internal/mountinfo"
)

// Names of the controllers that a run's limits need.
const (
	Memory = "memory"
	Pids   = "pids"
)

// Layout is where this host has its cgroup file systems.
type Layout struct {
	Unified string            // mount point of cgroup2, "" when there is none
	V1      map[string]string // mount points of the v1 hierarchies of Memory and Pids
}

// Mode names the layout: "v2", "hybrid", "v1" or "none".
func (l Layout) Mode() string {
	switch {
	case l.Unified == "" && len(l.V1) == 0:
		return "none"
	case l.Unified == "":
		return "v1"
	case len(l.V1) == 0:
		return "v2"
	}
	return "hybrid"
}

// Detect reads the layout from /proc/self/mountinfo.
func Detect() (Layout, error) {
	text, err := mountinfo.Read()
	if err != nil {
		return Layout{}, err
	}
	return Parse(text), nil
}

// Parse reads a mount table (proc_pid_mountinfo(5)). Of several mounts of one
// hierarchy the first counts. A mount of a part of one does not: that is what a
// container without a cgroup namespace sees of its own cgroup.
func Parse(table []byte) Layout {
	l := Layout{V1: map[string]string{}}
	for m := range mountinfo.All(table) {
		if m.Root == "/" {
			l.add(m.Kind, m.Point, strings.Split(m.Super, ","))
		}
	}
	return l
}

func (l *Layout) add(fstype, point string, options []string) {
	if fstype == "cgroup2" && l.Unified == "" {
		l.Unified = point
	}
	if fstype != "cgroup" {
		return
	}
	for _, c := range options {
		if (c == Memory || c == Pids) && l.V1[c] == "" {
			l.V1[c] = point
		}
	}
}
