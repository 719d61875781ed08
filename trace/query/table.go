package query

import (
	"sync"

	"github.com/agentguard/agentguard/trace"
)

// The highest numbers (MAX_ERRNO of include/linux/err.h, SIGRTMAX of signal(7)).
const (
	maxErrno  = 4095
	maxSignal = 64
)

// fields are the fields of docs/record.md in its order, which a test holds
// together, and last those that are made from several.
// They are made when a query first asks: most processes never do.
var fields = sync.OnceValue(func() []field {
	return []field{
		{"v", Number, func(_ *trace.Event, v *value) { v.num, v.there = trace.Version, true }, nil},
		num("seq", Number, func(e *trace.Event) uint64 { return e.Seq }),
		num("mono", Span, func(e *trace.Event) uint64 { return e.Mono }),
		{"wall", Text, wall, nil},
		str("kind", func(e *trace.Event) trace.Kind { return e.Kind }, kindNames()...),
		str("phase", func(e *trace.Event) trace.Phase { return e.Phase }, "envelope", "command"),
		always("cpu", fromKernel, func(e *trace.Event) uint32 { return e.CPU }),
		num("cpu_seq", Number, func(e *trace.Event) uint64 { return e.CPUSeq }),

		id("proc", who),
		num("pid", Number, func(e *trace.Event) uint32 { return e.Proc.Pid }),
		thread("tid", who),
		num("ns_pid", Number, func(e *trace.Event) uint32 { return e.Proc.NSPid }),
		num("ppid", Number, func(e *trace.Event) uint32 { return e.Proc.PPid }),
		{"parent", Text, parent, nil},
		always("uid", isProc, func(e *trace.Event) uint32 { return e.Proc.UID }),
		raw("comm", func(e *trace.Event) []byte { return e.Comm }),
		id("child", child),
		thread("child_tid", child),
		num("child_ns_pid", Number, func(e *trace.Event) uint32 { return e.Child.NSPid }),
		id("target", target),
		thread("target_tid", target),
		num("target_ns_pid", Number, func(e *trace.Event) uint32 { return e.Target.NSPid }),

		str("syscall", func(e *trace.Event) string { return e.Syscall }),
		always("nr", isCall, func(e *trace.Event) int32 { return e.SyscallNr }),
		{"ret", Number, ret, nil},
		named("errno", func(e *trace.Event) int32 { return e.Errno }, trace.ErrnoName, maxErrno),
		num("count", Number, (*trace.Event).Times),

		raw("path", func(e *trace.Event) []byte { return e.Path }),
		num("path_len", Bytes, func(e *trace.Event) uint32 { return e.PathLen }),
		str("path_source", func(e *trace.Event) trace.PathSource { return e.PathSource }, "kernel", "user", "fd-exit", "unreadable"),
		raw("path_given", func(e *trace.Event) []byte { return e.PathGiven }),
		raw("to", func(e *trace.Event) []byte { return e.To }),
		num("to_len", Bytes, func(e *trace.Event) uint32 { return e.ToLen }),
		raw("to_given", func(e *trace.Event) []byte { return e.ToGiven }),
		flag("truncated", func(e *trace.Event) bool { return e.PathLen != 0 || e.ToLen != 0 }),
		str("access", func(e *trace.Event) string { return e.Access }, "r", "w", "rw", "x", "path"),
		num("flags", Number, func(e *trace.Event) uint64 { return e.Flags }),
		num("resolve", Number, func(e *trace.Event) uint64 { return e.Resolve }),
		{"mode", Text, mode, nil},
		always("new_uid", isChown, func(e *trace.Event) int64 { return e.NewUID }),
		always("new_gid", isChown, func(e *trace.Event) int64 { return e.NewGID }),
		{"dev", Text, device, nil},
		num("ino", Number, func(e *trace.Event) uint64 { return e.Ino }),
		num("ctime", Span, func(e *trace.Event) uint64 { return uint64(max(e.Ctime, 0)) }),
		always("fd", func(e *trace.Event) bool {
			return e.FD != 0 || e.Kind == trace.KindInherit || e.Kind == trace.KindReceive
		}, func(e *trace.Event) int32 { return e.FD }),
		flag("memfd", func(e *trace.Event) bool { return e.Memfd }),
		flag("deleted", func(e *trace.Event) bool { return e.Deleted }),
		flag("anon", func(e *trace.Event) bool { return e.Anon }),
		flag("filtered", func(e *trace.Event) bool { return e.Filtered }),
		raw("name", func(e *trace.Event) []byte { return e.Name }),
		num("name_len", Bytes, func(e *trace.Event) uint32 { return e.NameLen }),

		{"argv", List, func(e *trace.Event, v *value) { v.list, v.there = e.Argv, len(e.Argv) > 0 }, nil},
		num("argc", Number, func(e *trace.Event) uint32 { return e.Argc }),
		num("argv_len", Bytes, func(e *trace.Event) uint64 { return e.ArgvLen }),
		flag("argv_truncated", func(e *trace.Event) bool { return e.ArgvLen != 0 }),
		{"env", List, func(e *trace.Event, v *value) { v.list, v.there = e.Env, len(e.Env) > 0 }, nil},
		num("env_len", Bytes, func(e *trace.Event) uint64 { return e.EnvLen }),
		flag("env_truncated", func(e *trace.Event) bool { return e.EnvLen != 0 }),
		raw("script", func(e *trace.Event) []byte { return e.Script }),
		raw("interp", func(e *trace.Event) []byte { return e.Interp }),
		str("script_sha256", func(e *trace.Event) string { return e.ScriptSHA256 }),

		str("family", func(e *trace.Event) string { return e.Family }),
		str("proto", func(e *trace.Event) string { return e.Proto }),
		{"addr", Addr, func(e *trace.Event, v *value) { v.addr, v.there = e.Addr, e.Addr.IsValid() }, nil},
		always("port", func(e *trace.Event) bool { return e.Addr.IsValid() }, func(e *trace.Event) uint16 { return e.Port }),
		num("bytes", Bytes, func(e *trace.Event) uint64 { return e.Bytes }),
		num("received", Bytes, func(e *trace.Event) uint64 { return e.Received }),
		num("duration", Span, func(e *trace.Event) uint64 { return e.Duration }),
		str("end", func(e *trace.Event) string { return e.End }),
		str("method", func(e *trace.Event) string { return e.Method }),
		num("status", Number, func(e *trace.Event) uint32 { return e.Status }),
		num("hidden", Number, func(e *trace.Event) uint64 { return e.Hidden }),
		str("credential", func(e *trace.Event) string { return e.Credential }),

		str("limit", func(e *trace.Event) string { return e.Limit }),
		num("limit_value", Bytes, func(e *trace.Event) uint64 { return e.LimitValue }),
		num("limit_hits", Number, func(e *trace.Event) uint64 { return e.LimitHits }),
		str("probe", func(e *trace.Event) string { return e.Probe }),

		str("verdict", func(e *trace.Event) trace.Verdict { return e.Verdict }, "allow", "deny"),
		str("layer", func(e *trace.Event) trace.Layer { return e.Layer }, "landlock", "seccomp", "bpf", "mount", "dac", "limit", "none"),
		str("rule", func(e *trace.Event) string { return e.Rule }),
		str("rule_source", func(e *trace.Event) string { return e.RuleSource }),
		str("remedy", func(e *trace.Event) string { return e.Remedy }),
		str("certainty", func(e *trace.Event) trace.Certainty { return e.Certainty }, "certain", "inferred"),
		str("blockers", func(e *trace.Event) string { return e.Blockers }),

		always("exit_code", hasExit, func(e *trace.Event) int32 { return e.ExitCode }),
		named("signal", func(e *trace.Event) int32 { return e.Signal }, trace.SignalName, maxSignal),
		flag("core", func(e *trace.Event) bool { return e.Core }),
		num("utime", Span, func(e *trace.Event) uint64 { return e.UTime }),
		num("stime", Span, func(e *trace.Event) uint64 { return e.STime }),
		num("maxrss", Bytes, func(e *trace.Event) uint64 { return e.MaxRSS }),
		str("reason", func(e *trace.Event) string { return e.Reason }),
		str("stream", func(e *trace.Event) string { return e.Stream }, "stdout", "stderr"),
		num("kept", Bytes, func(e *trace.Event) uint64 { return e.Kept }),
		str("sha256", func(e *trace.Event) string { return e.SHA256 }),
		str("hash_state", func(e *trace.Event) string { return e.HashState }),

		str("lost_class", func(e *trace.Event) string { return e.Loss.Class }),
		str("lost_cause", func(e *trace.Event) string { return e.Loss.Cause }),
		always("lost_count", isLoss, func(e *trace.Event) uint64 { return e.Loss.Count }),
		num("lost_bytes", Bytes, func(e *trace.Event) uint64 { return e.Loss.Bytes }),
		always("after_seq", isLoss, func(e *trace.Event) uint64 { return e.Loss.AfterSeq }),
		num("before_seq", Number, func(e *trace.Event) uint64 { return e.Loss.BeforeSeq }),
		always("lost_cpu", func(e *trace.Event) bool { return isLoss(e) && e.Loss.CPU >= 0 }, func(e *trace.Event) int32 { return e.Loss.CPU }),
		num("lost_first", Number, func(e *trace.Event) uint64 { return e.Loss.First }),
		num("lost_last", Number, func(e *trace.Event) uint64 { return e.Loss.Last }),

		str("run", func(e *trace.Event) string { return e.Run }),
		str("boot_id", func(e *trace.Event) string { return e.BootID }),
		str("tool", func(e *trace.Event) string { return e.Tool }),
		str("kernel", func(e *trace.Event) string { return e.Kernel }),
		str("tier", func(e *trace.Event) string { return e.Tier }),
		str("plan_sha256", func(e *trace.Event) string { return e.PlanSHA256 }),
		{"degraded", List, degraded, nil},
		str("text", func(e *trace.Event) string { return e.Text }),
		num("records", Number, func(e *trace.Event) uint64 { return e.Records }),
		num("lost", Number, func(e *trace.Event) uint64 { return e.Lost }),
		{"counts", List, names, nil},
		{"findings", List, findings, nil},

		flag("denied", (*trace.Event).Denied), // verdict deny, phase command, no canary
	}
})

func kindNames() []string {
	var out []string
	for _, k := range trace.Kinds() {
		out = append(out, string(k))
	}
	return out
}

// lookup finds a field by its name.
func lookup(name string) *field {
	all := fields()
	for i := range all {
		if all[i].name == name {
			return &all[i]
		}
	}
	return nil
}

// Fields returns the names of all fields and what they hold, in the order of
// docs/record.md.
func Fields() (names []string, types []Type) {
	for _, f := range fields() {
		names, types = append(names, f.name), append(types, f.typ)
	}
	return names, types
}
