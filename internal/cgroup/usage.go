package cgroup

import "time"

// CPU is the time that everything in the leaf has used. It needs no
// controller: every v2 cgroup has a cpu.stat.
func (l *Leaf) CPU() (user, system time.Duration, err error) {
	if l == nil {
		return 0, 0, nil
	}
	v, err := keyed(l.Path, "cpu.stat", "user_usec", "system_usec")
	if err != nil {
		return 0, 0, err
	}
	return time.Duration(v[0]) * time.Microsecond, time.Duration(v[1]) * time.Microsecond, nil
}

// MemoryPeak is the most memory that the leaf held, in bytes (v2: 5.19); 0
// where the memory controller is missing.
func (l *Leaf) MemoryPeak() int64 {
	if l == nil {
		return 0
	}
	if dir := l.V1[Memory]; dir != "" {
		return orZero(number(dir, "memory.max_usage_in_bytes"))
	}
	return orZero(number(l.Path, "memory.peak"))
}

// OOMKills counts the tasks that the kernel killed because the leaf met its
// memory limit; 0 where the memory controller is missing.
func (l *Leaf) OOMKills() int64 {
	if l == nil {
		return 0
	}
	if dir := l.V1[Memory]; dir != "" {
		return orZero(first(keyed(dir, "memory.oom_control", "oom_kill"))) // 4.13
	}
	return orZero(first(keyed(l.Path, "memory.events", "oom_kill")))
}

// TaskRefusals counts the forks and clones that the task limit refused; 0 where
// the pids controller is missing.
func (l *Leaf) TaskRefusals() int64 {
	if l == nil {
		return 0
	}
	dir := l.V1[Pids]
	if dir == "" {
		dir = l.Path
	}
	return orZero(first(keyed(dir, "pids.events", "max")))
}

func first(v []int64, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return v[0], nil
}

func orZero(n int64, err error) int64 {
	if err != nil {
		return 0
	}
	return n
}
