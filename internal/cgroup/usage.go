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
	own, _ := l.oomKills()
	return own
}

// KilledAround counts those that it killed for want of memory elsewhere: on the host, or in a
// cgroup around the leaf that has a smaller limit, as a container's.
func (l *Leaf) KilledAround() int64 {
	_, around := l.oomKills()
	return around
}

// oomKills tells the two apart by whether the limit of the leaf was ever met: the kernel counts who is
// killed in a cgroup, whatever for (cgroup-v2.rst, memory.events).
func (l *Leaf) oomKills() (own, around int64) {
	if l == nil {
		return 0, 0
	}
	var kills int64
	met := false
	if dir := l.V1[Memory]; dir != "" {
		kills = orZero(first(keyed(dir, "memory.oom_control", "oom_kill"))) // 4.13
		met = reached(dir, "memory.") || reached(dir, "memory.memsw.")
	} else if v, err := keyed(l.Path, "memory.events", "oom", "oom_kill"); err == nil {
		met, kills = v[0] > 0, v[1]
	}
	if !met {
		return 0, kills
	}
	return kills, 0
}

// reached reports whether a limit of v1 was met: its failcnt is not counted any more (seen on 6.18).
// What was refused was less than a batch of the kernel's (MEMCG_CHARGE_BATCH, 64 pages of up to 64 KiB).
func reached(dir, prefix string) bool {
	limit, err := number(dir, prefix+"limit_in_bytes")
	most, merr := number(dir, prefix+"max_usage_in_bytes")
	return err == nil && merr == nil && most > limit-min(4<<20, limit/8)
}

// TaskRefusals counts the forks and clones that the task limit refused; 0 where
// the pids controller is missing. Up to Linux 6.10, and in v1 hierarchies, pids.events has also those
// that a cgroup around the leaf refused, as a container's: pids.peak (6.3) tells whether the leaf was ever full.
func (l *Leaf) TaskRefusals() int64 {
	if l == nil {
		return 0
	}
	dir := l.V1[Pids]
	if dir == "" {
		dir = l.Path
	}
	most, err := number(dir, "pids.peak")
	limit, lerr := number(dir, "pids.max") // an error where it is "max"
	if err == nil && (lerr != nil || most < limit) {
		return 0
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
