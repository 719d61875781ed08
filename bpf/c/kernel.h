/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What the programs need of the kernel and nothing else, so that the objects
 * do not depend on the build host's headers.
 *
 * Three kinds of declarations:
 *   - the stable user API of BPF (contexts, helper numbers, map types): the
 *     numbers are those of include/uapi/linux/bpf.h;
 *   - kernel structures, cut to the fields that are read. They carry
 *     preserve_access_index: the loader relocates each access against the
 *     running kernel's BTF (CO-RE), so offsets here mean nothing;
 *   - pt_regs, which differs by architecture.
 */
#ifndef AGENTGUARD_KERNEL_H
#define AGENTGUARD_KERNEL_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;
typedef u8 bool8;

#define NULL ((void *)0)
#define MAX_ERRNO 4095
#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
/* Verified once and by itself, whatever its callers know; takes numbers only. */
#define SEPARATE __attribute__((noinline))
#define KERNEL_TYPE __attribute__((preserve_access_index))

/* Map definitions in the BTF style of libbpf. */
#define MAP_UINT(name, val) int(*name)[val]
#define MAP_TYPE(name, val) typeof(val) *name

enum {
	MAP_HASH = 1,
	MAP_PERCPU_ARRAY = 6,
	MAP_LRU_HASH = 9,
	MAP_LPM_TRIE = 11,
	MAP_ARRAY_OF_MAPS = 12,
	MAP_SOCKMAP = 15,
	MAP_RINGBUF = 27,
	MAP_TASK_STORAGE = 29,
};

enum {
	MAP_ANY = 0,
	MAP_NOEXIST = 1,
	MAP_NO_PREALLOC = 1, /* BPF_F_NO_PREALLOC of map_flags */
	STORAGE_CREATE = 1,
	RING_NO_WAKEUP = 1,
	RING_FORCE_WAKEUP = 2,
	RING_AVAIL_DATA = 0,
};

struct task_struct;
struct bpf_sock;

/* Helpers, by number (uapi/linux/bpf.h, __BPF_FUNC_MAPPER). All are in 6.1. */
static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static u32 (*const smp_processor_id)(void) = (void *)8;
static u64 (*const current_pid_tgid)(void) = (void *)14;
static u64 (*const current_uid_gid)(void) = (void *)15;
static long (*const skb_load_bytes)(const void *skb, u32 off, void *to, u32 len) = (void *)26;
static u64 (*const current_task)(void) = (void *)35;
static u64 (*const skb_ancestor_cgroup_id)(void *skb, int level) = (void *)83;
static long (*const sk_release)(struct bpf_sock *sk) = (void *)86;
static long (*const read_user)(void *dst, u32 size, const void *src) = (void *)112;
static long (*const read_kernel)(void *dst, u32 size, const void *src) = (void *)113;
static long (*const read_user_str)(void *dst, u32 size, const void *src) = (void *)114;
static long (*const read_kernel_str)(void *dst, u32 size, const void *src) = (void *)115;
static u64 (*const current_ancestor_cgroup_id)(int level) = (void *)123;
static long (*const sk_assign)(void *ctx, struct bpf_sock *sk, u64 flags) = (void *)124;
static u64 (*const ktime_boot_ns)(void) = (void *)125;
static long (*const ringbuf_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
static u64 (*const ringbuf_query)(void *ring, u64 flags) = (void *)134;
static void *(*const task_storage)(void *map, struct task_struct *task, void *value, u64 flags) = (void *)156;
static struct task_struct *(*const current_task_btf)(void) = (void *)158; /* fields by plain loads, in tracing programs */
static long (*const task_registers)(struct task_struct *task) = (void *)175; /* struct pt_regs: those of user space */
static long (*const find_vma)(struct task_struct *task, u64 addr, void *fn, void *ctx, u64 flags) = (void *)180;
static struct pt_regs *(*const task_pt_regs)(struct task_struct *task) = (void *)175;
static long (*const loop)(u32 rounds, void *fn, void *ctx, u64 flags) = (void *)181;

/*
 * READ reads one field through a kernel pointer; zero where that fails. From
 * Linux 6.2 on a pointer can be told its type (bpf_rdonly_cast, which becomes a
 * move), and the field is loaded like any other, faults being handled: some 30
 * times faster than the helper. Tracing programs ask for that with TYPED_READS,
 * and the loader may take it back, for a verifier that does not follow.
 */
#ifdef TYPED_READS
const volatile u32 typed_reads = 1;
extern void *bpf_rdonly_cast(const void *obj, u32 btf_id) __attribute__((section(".ksyms"), weak));
#define CAN_CAST (typed_reads && bpf_rdonly_cast != NULL)
#define CAST(p) ((typeof(p))bpf_rdonly_cast(p, __builtin_btf_type_id(*(p), 1)))
#else
#define CAN_CAST 0
#define CAST(p) (p)
#endif

/* COPY is READ by the helper: a pointer that comes back is a number, which can be hashed and handed on. */
#define COPY(p, field)                                                                     \
	({                                                                                 \
		typeof(p) p_ = (p); /* p itself is no access to relocate */                \
		typeof(p_->field) v_ = {};                                                 \
		read_kernel(&v_, sizeof(v_), __builtin_preserve_access_index(&p_->field)); \
		v_;                                                                        \
	})

#define READ(p, field)                                                                             \
	({                                                                                         \
		typeof(p) p_ = (p);                                                                \
		typeof(p_->field) v_ = {};                                                         \
		if (CAN_CAST)                                                                      \
			v_ = *__builtin_preserve_access_index(&CAST(p_)->field);                  \
		else                                                                               \
			read_kernel(&v_, sizeof(v_), __builtin_preserve_access_index(&p_->field)); \
		v_;                                                                                \
	})

/* HAS is whether this kernel's type has the field. */
#define HAS(p, field) __builtin_preserve_field_info((p)->field, 2)

/*
 * at_most bounds a length so that the verifier can follow it: without the
 * barriers the compiler compares one register and uses another.
 */
INLINE u32 at_most(u32 n, u32 max)
{
	__asm__ volatile("" : "+r"(n));
	if (n > max)
		n = max;
	__asm__ volatile("" : "+r"(n));
	return n;
}

/*
 * FORGET reads a field of a map's value again. The verifier does not know what
 * is in there, so that the paths which led to different values become one.
 */
#define FORGET(field) (*(volatile typeof(field) *)&(field))

INLINE u16 ntohs(u16 v)
{
	return __builtin_bswap16(v);
}

INLINE u32 htonl(u32 v)
{
	return __builtin_bswap32(v);
}

/* Program contexts of the user API: fixed layout, never relocated. */
struct bpf_sock_addr {
	u32 user_family;
	u32 user_ip4;
	u32 user_ip6[4];
	u32 user_port;
	u32 family;
	u32 type;
	u32 protocol;
	u32 msg_src_ip4;
	u32 msg_src_ip6[4];
	union {
		struct bpf_sock *sk;
		u64 sk_pad;
	} __attribute__((aligned(8)));
};

struct bpf_sock {
	u32 bound_dev_if;
	u32 family;
	u32 type;
	u32 protocol;
};

struct __sk_buff {
	u32 len;
	u32 pkt_type;
	u32 mark;
	u32 queue_mapping;
	u32 protocol;
};

struct bpf_sk_lookup {
	u64 cookie;
	u32 family;
	u32 protocol;
	u32 remote_ip4; /* network order, as all addresses */
	u32 remote_ip6[4];
	u32 remote_port;
	u32 local_ip4;
	u32 local_ip6[4];
	u32 local_port; /* host order */
	u32 ingress_ifindex;
};

enum {
	SK_DROP = 0,
	SK_PASS = 1,
};

/* Kernel structures. */
struct kernfs_node {
	u64 id;
} KERNEL_TYPE;

struct cgroup {
	int level;
	struct kernfs_node *kn;
	struct cgroup *ancestors[1]; /* 6.1 and on; one entry a level */
} KERNEL_TYPE;

struct css_set {
	struct cgroup *dfl_cgrp;
} KERNEL_TYPE;

struct super_block {
	u32 s_dev;
} KERNEL_TYPE;

struct inode {
	u16 i_mode;
	u64 i_ino;
	struct super_block *i_sb;
} KERNEL_TYPE;

struct qstr {
	u64 hash_len; /* salted with the parent directory */
	const unsigned char *name;
};

struct hlist_bl_node {
	void **pprev;
};

struct dentry {
	struct hlist_bl_node d_hash; /* unhashed: pprev is NULL */
	struct dentry *d_parent;     /* itself where it has none */
	struct qstr d_name;
	struct inode *d_inode;
} KERNEL_TYPE;

struct vfsmount {
	struct dentry *mnt_root;
} KERNEL_TYPE;

struct mount {
	struct mount *mnt_parent; /* itself where it has none */
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
	void *mnt_ns; /* an error pointer: the kernel's own mount */
} KERNEL_TYPE;

/* Read as a whole, and kept in structures of our own. */
struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

struct fs_struct {
	struct path root, pwd;
} KERNEL_TYPE;

/*
 * The time of an inode's last change has had three shapes: up to 6.5, up to
 * 6.10, and since. What follows ___ is not part of a type's name for CO-RE.
 */
struct timespec64 {
	s64 tv_sec;
	s64 tv_nsec;
} KERNEL_TYPE;

struct inode___6_1 {
	struct timespec64 i_ctime;
} KERNEL_TYPE;

struct inode___6_6 {
	struct timespec64 __i_ctime;
} KERNEL_TYPE;

struct inode___6_11 {
	s64 i_ctime_sec;
	u32 i_ctime_nsec;
} KERNEL_TYPE;

struct file {
	u32 f_mode;
	struct path f_path;
	struct inode *f_inode;
	void *private_data;
} KERNEL_TYPE;

struct backing_file { /* 6.5; user_path since 6.7 */
	struct file file;
	struct path user_path;
} KERNEL_TYPE;

struct vm_area_struct {
	u64 vm_end;
	u64 vm_flags;
	struct file *vm_file;
	void *anon_vma; /* set once a page has been copied, or is of no file */
} KERNEL_TYPE;

struct fdtable {
	u32 max_fds;
	struct file **fd;
} KERNEL_TYPE;

struct in6_addr {
	u8 b[16];
};

struct sock_common {
	u16 skc_family;
	u16 skc_num;
	u32 skc_rcv_saddr;
	struct in6_addr skc_v6_rcv_saddr;
} KERNEL_TYPE;

struct sock {
	struct sock_common __sk_common;
	u16 sk_type;
	u16 sk_protocol;
} KERNEL_TYPE;

struct socket {
	struct sock *sk;
} KERNEL_TYPE;

struct mm_struct {
	u64 arg_start;
	u64 arg_end;
	u64 env_start;
	u64 env_end;
	struct file *exe_file;
} KERNEL_TYPE;

struct upid {
	int nr;
	void *ns;
};

struct pid {
	u32 level;
	struct upid numbers[1];
} KERNEL_TYPE;

struct atomic {
	int counter;
};

struct files_struct {
	struct atomic count;
	struct fdtable *fdt;
} KERNEL_TYPE;

struct signal_struct {
	struct atomic live;
	int group_exit_code;
	u32 flags;
	u64 utime;
	u64 stime;
	u64 sum_sched_runtime;
	u64 maxrss;
} KERNEL_TYPE;

struct sched_entity {
	u64 sum_exec_runtime;
} KERNEL_TYPE;

struct thread_info {
	u64 flags;
	u32 status; /* x86 only */
} KERNEL_TYPE;

struct seccomp {
	struct atomic filter_count;
} KERNEL_TYPE;

struct task_struct {
	struct thread_info thread_info;
	struct mm_struct *mm;
	s32 tgid;
	s32 pid;
	u64 start_boottime;
	u32 self_exec_id;
	u64 utime;
	u64 stime;
	struct sched_entity se;
	int exit_code;
	struct task_struct *group_leader;
	struct task_struct *real_parent;
	struct pid *thread_pid;
	struct signal_struct *signal;
	struct css_set *cgroups;
	struct files_struct *files;
	struct fs_struct *fs;
	struct seccomp seccomp;
} KERNEL_TYPE;

struct linux_binprm {
	int argc;
	const char *filename;
	const char *interp;
} KERNEL_TYPE;

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	u64 r10, r9, r8, dx, si, di, orig_ax;
} KERNEL_TYPE;
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	u64 regs[31];
	u64 orig_x0;
	s32 syscallno;
} KERNEL_TYPE;
#else
#error "no register layout for this architecture"
#endif

#endif
