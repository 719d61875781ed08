/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Which run does this belong to, and how its records are written.
 *
 * All runs live below one parent cgroup; a run is the leaf at `level`, whatever
 * cgroups the command makes below it. Nothing else identifies a run.
 *
 * rings and counters are indexed by slot, not keyed by cgroup: an update of a
 * map of maps waits for an RCU grace period, so user space fills a slot once
 * and lends it to one run after the other.
 */
#ifndef AGENTGUARD_RUN_H
#define AGENTGUARD_RUN_H

#include "abi.h"

#define SLOTS 256

const volatile u32 level;     /* depth of the leaf cgroups; set before loading */
const volatile u64 parent_id; /* their parent, at level - 1 */

struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 1024);
	MAP_TYPE(key, u64);
	MAP_TYPE(value, struct run);
} runs SEC(".maps");

struct ring_map {
	MAP_UINT(type, MAP_RINGBUF);
	MAP_UINT(max_entries, 65536); /* each run's own size replaces it */
};

struct counters_map {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_UINT(key_size, sizeof(u32));
	MAP_UINT(value_size, sizeof(struct counters));
};

struct {
	MAP_UINT(type, MAP_ARRAY_OF_MAPS);
	MAP_UINT(max_entries, SLOTS);
	MAP_TYPE(key, u32);
	struct ring_map *values[];
} rings SEC(".maps");

struct {
	MAP_UINT(type, MAP_ARRAY_OF_MAPS);
	MAP_UINT(max_entries, SLOTS);
	MAP_TYPE(key, u32);
	struct counters_map *values[];
} counts SEC(".maps");

/* The run that an event belongs to. */
struct member {
	u64 id;
	struct run *run;
	struct counters *counts;
};

/* find fills m for the leaf cgroup id; false where there is no such run. */
INLINE bool8 find(struct member *m, u64 id)
{
	u32 zero = 0;
	void *inner;

	m->id = id;
	m->run = map_lookup(&runs, &id);
	if (!m->run)
		return 0;
	inner = map_lookup(&counts, &m->run->slot);
	if (!inner)
		return 0;
	m->counts = map_lookup(inner, &zero);
	return m->counts != NULL;
}

/* outside is true of tasks below no leaf of ours: they pay one helper call. */
INLINE bool8 outside(void)
{
	return current_ancestor_cgroup_id(level - 1) != parent_id;
}

/* find_current finds the run of the current task. */
INLINE bool8 find_current(struct member *m)
{
	if (outside())
		return 0;
	return find(m, current_ancestor_cgroup_id(level));
}

/* in_command tells the command's own acts from those of init and of the steps before its execve. */
INLINE bool8 in_command(const struct run *run, u32 tgid)
{
	return run->started && tgid != run->init_tgid;
}

INLINE void add(u64 *counter, u64 n)
{
	__sync_fetch_and_add(counter, n);
}

/* Fills the header for the current task. */
INLINE void fill_current(struct header *h, const struct member *m, u8 type, u8 class)
{
	struct task_struct *task = (void *)current_task();
	struct task_struct *leader = READ(task, group_leader);
	u64 id = current_pid_tgid();

	h->type = type;
	h->class = class;
	h->tgid = id >> 32;
	h->tid = (u32)id;
	h->phase = in_command(m->run, h->tgid) ? PHASE_COMMAND : PHASE_ENVELOPE;
	h->flags = 0;
	h->pad = 0;
	h->start = READ(leader, start_boottime);
	h->uid = (u32)current_uid_gid();
	h->nr = -1;
	h->ret = 0;
}

/*
 * A wait is WAIT_MIN just above the brake, grows with the square of what is
 * above it to WAIT_MAX at three quarters of the ring, and ends sooner if there is room.
 */
#define WAIT_MIN 100000   /* ns */
#define WAIT_MAX 10000000 /* a tick of a kernel with HZ=100 */

struct wait {
	u64 until;
	u32 slot, mark;
};

/* still_full ends the wait when the reader has made room, or the time is over; called by loop(). */
static long still_full(u32 round, struct wait *w)
{
	void *ring = map_lookup(&rings, &w->slot);

	(void)round;
	return !ring || ringbuf_query(ring, RING_AVAIL_DATA) <= w->mark || ktime_boot_ns() > w->until;
}

/* longest_wait is in ns, for a ring with so many bytes unread above the mark. */
INLINE u64 longest_wait(u64 unread, u32 mark)
{
	u64 above = (unread - mark) * 512 / mark; /* 256: three quarters of the ring */

	return above < 256 ? WAIT_MIN + WAIT_MAX * above * above / 65536 : WAIT_MIN + WAIT_MAX;
}

/*
 * wait_for_room keeps the current task busy while its ring is fuller than the
 * brake allows, but not for long: the run is being frozen, and this bounds what
 * its tasks write until they reach the return to user space, where the freezer
 * stops them. Freezing takes a lock of all cgroups, and who freezes needs a CPU:
 * both may take longer than one wait, so what counts is the sum over all events
 * that find room yet (0010 of docs/decisions). Tracepoints are entered without
 * preemption before Linux 7.0, so one wait must end soon; what comes then finds
 * room, or is dropped and counted.
 */
SEPARATE int wait_for_room(u64 run)
{
	struct wait w = {};
	struct member m;
	u64 begun, unread;
	void *ring;

	if (!find(&m, run))
		return 0;
	w.slot = m.run->slot;
	w.mark = m.run->brake;
	ring = map_lookup(&rings, &w.slot);
	if (!ring)
		return 0;
	unread = ringbuf_query(ring, RING_AVAIL_DATA);
	if (unread <= w.mark)
		return 0;
	begun = ktime_boot_ns();
	w.until = begun + longest_wait(unread, w.mark);
	loop(1 << 20, still_full, &w, 0);
	add(&m.counts->waits, 1);
	add(&m.counts->wait_ns, ktime_boot_ns() - begun);
	return 0;
}

/* count_lost returns false, as emit does of a lost record. */
INLINE bool8 count_lost(const struct member *m, const struct header *h, u32 size)
{
	struct class_count *class = &m->counts->class[at_most(h->class, CLASSES - 1)];

	add(&class->dropped, 1);
	add(&class->dropped_bytes, size);
	add(&m->counts->dropped[h->type & (EVENT_TYPES - 1)], 1);
	return 0;
}

/*
 * emit_now numbers and writes one record, or counts its loss and returns false.
 * The number is taken before the outcome is known, so that a lost record leaves a hole.
 */
INLINE bool8 emit_now(const struct member *m, struct header *h, u32 size)
{
	u32 class = at_most(h->class, CLASSES - 1);
	u64 flags = RING_NO_WAKEUP, unread;
	u32 slot = m->run->slot; /* on the stack: not every kernel takes a key from elsewhere */
	void *ring;

	h->cpu = smp_processor_id();
	h->run = m->id;
	h->time = ktime_boot_ns();
	h->seq = __sync_fetch_and_add(&m->counts->seq, 1);
	ring = map_lookup(&rings, &slot);
	if (!ring)
		return count_lost(m, h, size);
	unread = ringbuf_query(ring, RING_AVAIL_DATA);
	if (unread > m->run->room[class])
		return count_lost(m, h, size);
	if (unread > m->run->watermark || (h->flags & F_SOON))
		flags = RING_FORCE_WAKEUP;
	if (ringbuf_output(ring, h, size, flags))
		return count_lost(m, h, size);
	add(&m->counts->class[class].sent, 1);
	return 1;
}

/*
 * own_filter reports whether a seccomp filter that the command has installed itself stands before
 * the current thread's calls: it may answer one that is never made (SECCOMP_RET_ERRNO, and 0 is success).
 */
INLINE bool8 own_filter(const struct run *run)
{
	struct task_struct *task = (void *)current_task();

	return run->started && (u32)READ(task, seccomp.filter_count.counter) > run->filters;
}

/* emit is emit_now for what the current task does: in a run with a brake it may have to wait. */
INLINE bool8 emit(const struct member *m, struct header *h, u32 size)
{
	if ((h->nr >= 0 || h->type == EV_REPEAT) && own_filter(m->run))
		h->flags |= F_FILTERED;
	if (m->run->brake)
		wait_for_room(m->id);
	return emit_now(m, h, size);
}

#endif
