package cgroup

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Rates are bounds of what is given out by time, as a leaf of v2 takes them; none is none.
type Rates struct {
	CPU   string   `json:"cpu,omitempty"`    // of cpu.max: microseconds, of so many: "50000 100000"
	CPUAt string   `json:"cpu_at,omitempty"` // the cgroup that has it, from the root of the hierarchy
	IO    []string `json:"io,omitempty"`     // lines of io.max, one for a device: "8:16 rbps=1048576 wiops=120"
	IOAt  []string `json:"io_at,omitempty"`  // those that have them, from below
}

// RatesAbove reads cpu.max and io.max on the way from the cgroup of a process to the root:
// the smallest share of a CPU, and of each device the smallest of each kind
// (cgroup-v2.rst). membership is its /proc/PID/cgroup. In v1 hierarchies they are not looked for.
func (l Layout) RatesAbove(membership []byte) (r Rates, err error) {
	at, ok := memberOf(membership, "")
	if l.Unified == "" || !ok {
		return r, nil
	}
	share := 0.0
	devices := map[string]map[string]uint64{}
	for ; ; at = path.Dir(at) {
		dir := filepath.Join(l.Unified, at)
		quota, period, err := cpuMax(dir)
		if err != nil {
			return r, err
		}
		if s := float64(quota) / float64(period); quota > 0 && (r.CPU == "" || s < share) {
			share, r.CPU, r.CPUAt = s, fmt.Sprintf("%d %d", quota, period), at
		}
		bounds, err := ioMax(dir, devices)
		if err != nil {
			return r, err
		}
		if bounds {
			r.IOAt = append(r.IOAt, at)
		}
		if at == "/" {
			r.IO = ioLines(devices)
			return r, nil
		}
	}
}

// cpuMax reads "QUOTA PERIOD", where a quota of "max", 0 here, is none.
func cpuMax(dir string) (quota, period uint64, err error) {
	b, err := read(dir, "cpu.max")
	f := strings.Fields(string(b))
	if errors.Is(err, os.ErrNotExist) || err == nil && len(f) == 2 && f[0] == "max" {
		return 0, 1, nil
	}
	if err == nil && len(f) != 2 {
		err = fmt.Errorf("%s/cpu.max: %q", dir, b)
	}
	if err != nil {
		return 0, 1, err
	}
	quota, err = strconv.ParseUint(f[0], 10, 64)
	if err == nil {
		period, err = strconv.ParseUint(f[1], 10, 64)
	}
	if err == nil && period == 0 {
		err = fmt.Errorf("%s/cpu.max: %q", dir, b)
	}
	return quota, period, err
}

// ioMax puts the bounds of one cgroup into those that are known, where they are smaller, and reports whether it
// has any. The lines are "MAJOR:MINOR rbps=N wbps=max riops=max wiops=max".
func ioMax(dir string, devices map[string]map[string]uint64) (any bool, err error) {
	b, err := read(dir, "io.max")
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		for _, word := range f[min(1, len(f)):] {
			key, value, _ := strings.Cut(word, "=")
			if value == "max" {
				continue
			}
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return any, fmt.Errorf("%s/io.max: %q: %w", dir, line, err)
			}
			if devices[f[0]] == nil {
				devices[f[0]] = map[string]uint64{}
			}
			if old, ok := devices[f[0]][key]; !ok || n < old {
				devices[f[0]][key] = n
			}
			any = true
		}
	}
	return any, err
}

func ioLines(devices map[string]map[string]uint64) (lines []string) {
	for _, dev := range slices.Sorted(maps.Keys(devices)) {
		line := dev
		for _, key := range slices.Sorted(maps.Keys(devices[dev])) {
			line += fmt.Sprintf(" %s=%d", key, devices[dev][key])
		}
		lines = append(lines, line)
	}
	return lines
}

// provide switches a controller on for the leaves of the parent, where only some of them
// need it.
func (p *Parent) provide(controller string) error {
	for _, dir := range []string{filepath.Dir(p.Path), p.Path} {
		on, err := words(dir, "cgroup.subtree_control")
		if err == nil && !slices.Contains(on, controller) {
			err = write(dir, "cgroup.subtree_control", "+"+controller)
		}
		if err != nil {
			return fmt.Errorf("the %s controller: %w", controller, err)
		}
	}
	return nil
}

// rate sets the rates of a leaf.
func (p *Parent) rate(l *Leaf, r Rates) error {
	if r.CPU != "" {
		if err := errors.Join(p.provide("cpu"), write(l.Path, "cpu.max", r.CPU)); err != nil {
			return err
		}
	}
	if len(r.IO) == 0 {
		return nil
	}
	if err := p.provide("io"); err != nil {
		return err
	}
	for _, line := range r.IO {
		if err := write(l.Path, "io.max", line); err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
	}
	return nil
}
