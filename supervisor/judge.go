package supervisor

import (
	"bytes"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/seccomp"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"
)

// judge says which layer refused a call, and what would allow it. The filter
// is ours, so its answer is certain; a read-only mount of the view is the only source
// of EROFS but for a file system of the host's that is read-only itself; the rest is
// inferred from the errno and the plan.
func (r *recorder) judge(b *bpf.Event) {
	e := &r.ev
	e.Verdict, e.Certainty = trace.VerdictDeny, trace.Inferred
	if b.Call.Refused.By != 0 {
		r.judgeLandlock(&b.Call.Refused)
		return
	}
	if errno := seccompErrno(b, r.plan); errno != 0 && errno == e.Errno {
		r.judgeFilter(b)
		return
	}
	switch {
	case e.Errno == int32(unix.EROFS) && !r.granted(e):
		e.Layer, e.Certainty = trace.LayerMount, trace.Certain
	case e.Kind == trace.KindConnect || e.Kind == trace.KindSend || e.Kind == trace.KindBind || e.Kind == trace.KindSocket:
		r.judgeSocket(b)
		return
	case e.Kind == trace.KindSignal:
		e.Layer = trace.LayerDAC
		if r.plan.LandlockABI >= 6 {
			e.Layer = trace.LayerLandlock
		}
		return
	case e.Errno == int32(unix.EACCES) && len(e.Path) > 0 && path.IsAbs(string(e.Path)) && r.plan.LandlockABI > 0 && !r.granted(e):
		e.Layer = trace.LayerLandlock
	default:
		e.Layer = trace.LayerDAC
	}
	r.blame(e)
}

// judgeMissing makes a denial of a path that is not there because nothing of it
// is in the view. Whether the host has it is not asked: that it was not shown is
// what the command met.
func (r *recorder) judgeMissing() {
	e := &r.ev
	missing, source := e.Path, e.PathSource
	if e.Kind == trace.KindLink || e.Errno != int32(unix.ENOENT) || source != trace.PathUser || r.isShown(missing) || !r.outside(string(missing)) {
		return
	}
	e.Verdict, e.Certainty, e.Layer = trace.VerdictDeny, trace.Inferred, trace.LayerMount
	r.blame(e)
}

// probed are directories in which run-times look for what may or may not be
// there, on any host: a file that is missing is no refusal worth a word, unless
// its name is one that credentials have.
var probed = []string{"/dev", "/etc", "/proc", "/run", "/sys", "/var"}

// maxShown is how many directories of the view are remembered.
const maxShown = 4096

// isShown reports whether the directory that a path lies in was found to be part
// of the view before: programs look for many files in few directories.
func (r *recorder) isShown(p []byte) bool {
	_, ok := r.shown[string(p[:bytes.LastIndexByte(p, '/')+1])]
	return ok && !bytes.HasSuffix(p, []byte("/.."))
}

// show remembers such a directory.
func (r *recorder) show(p string) {
	if r.shown == nil {
		r.shown = map[string]struct{}{}
	}
	if len(r.shown) >= maxShown {
		clear(r.shown)
	}
	if dir := p[:strings.LastIndexByte(p, '/')+1]; !strings.HasSuffix(p, "/..") {
		r.shown[strings.Clone(dir)] = struct{}{}
	}
}

// outside reports whether nothing of the directory that an absolute path lies in
// is part of the view. A name that is missing in a directory of the view is no
// refusal: programs look for their files in many places.
func (r *recorder) outside(p string) bool {
	if !path.IsAbs(p) {
		return false
	}
	given := p
	p = path.Clean(p)
	dir := path.Dir(p)
	usual := false
	for i := range r.plan.View {
		e := &r.plan.View[i]
		if (e.mounted() || e.Op == "symlink") && within(dir, e.At) {
			r.show(given)
			return false
		}
		usual = usual || within(e.At, dir) // a directory that the view is only built of
	}
	usual = usual || slices.ContainsFunc(probed, func(dir string) bool { return within(p, dir) })
	return !usual || !trace.Advisable([]byte(path.Base(p)))
}

func (r *recorder) judgeSocket(*bpf.Event) {
	e := &r.ev
	e.Layer, e.Rule, e.RuleSource = trace.LayerBPF, "network.egress", "default"
	if e.Family == "unix" {
		e.Layer, e.Rule = trace.LayerDAC, "network.unix"
	}
}

// granted reports whether the view lets the command do what it tried at this
// path, so that Landlock would not have been the one to refuse.
func (r *recorder) granted(e *trace.Event) bool {
	g := r.grantOf(string(e.Path))
	switch {
	case g == nil:
		return false
	case g.Access == "rw":
		return true
	case e.Kind == trace.KindExecFail:
		return g.Access == "ro" // what is plain can be read, and not executed
	}
	return !writes(e) && g.Access != "list"
}

// grantOf returns the entry of the view that an absolute path lies in.
func (r *recorder) grantOf(p string) *Entry {
	if !path.IsAbs(p) {
		return nil
	}
	p = path.Clean(p)
	if i := slices.IndexFunc(r.plan.View, func(e Entry) bool { return e.At == p && e.mounted() }); i >= 0 {
		return &r.plan.View[i]
	}
	return holder(r.plan.View, p)
}

func writes(e *trace.Event) bool {
	return e.Kind != trace.KindOpen || e.Access == "w" || e.Access == "rw"
}

// blame names the clause that a denial follows from and the flag that would
// change it. Credential paths get no such advice (trace.Advisable).
func (r *recorder) blame(e *trace.Event) {
	if len(e.Path) == 0 {
		return
	}
	g := r.grantOf(string(e.Path))
	if g == nil {
		e.Rule, e.RuleSource = clauseReadOnly, "default"
		if e.Layer != trace.LayerDAC {
			e.Remedy = remedyOf(e)
		}
		return
	}
	if g.system { // a part of every run's view: no grant of a path below it would be wise
		e.Rule, e.RuleSource = clauseReadOnly, "default"
		return
	}
	e.Rule, e.RuleSource, _ = strings.Cut(strings.TrimSuffix(g.Clause, ")"), " (")
	if e.Layer != trace.LayerDAC {
		e.Remedy = remedyOf(e)
	}
}

// remedyOf is the flag that would allow the act, unless no run would take it: a
// broad mount needs more than a flag.
func remedyOf(e *trace.Event) string {
	text := trace.Remedy(e)
	if flag, p, _ := strings.Cut(text, " "); (flag == "--ro" || flag == "--rw") && policy.BroadMount(p, flag == "--rw") != "" {
		return ""
	}
	return text
}

// seccompErrno is what the run's filter answers to the call, or 0.
func seccompErrno(b *bpf.Event, plan *Plan) int32 {
	if b.Flags&bpf.Compat != 0 {
		return 0
	}
	filter := plan.seccomp()
	if plan.Notify {
		return int32(filter.DecideNotified(b.NR, b.Call.Args).Errno())
	}
	return int32(filter.Decide(b.NR, b.Call.Args).Errno())
}

// judgeFilter names the clause of what the filter refuses.
func (r *recorder) judgeFilter(b *bpf.Event) {
	e := &r.ev
	e.Layer, e.Certainty, e.Rule, e.RuleSource = trace.LayerSeccomp, trace.Certain, clauseSeccomp, "default"
	switch r.plan.seccomp().RefusedBy(b.NR, b.Call.Args) {
	case seccomp.BySharing:
		if e.Rule, e.Remedy = sharedClause(e), helperRemedy; e.Rule == gapMetadata {
			e.Remedy = r.metadataRemedy()
		}
	case seccomp.ByTable:
		if seccomp.Permissible(e.Syscall) {
			e.Remedy = clauseSeccomp + ": [" + e.Syscall + "] in a policy file"
		}
	}
}

// metadataRemedy is what would let the command change a file's metadata by its path. Where it
// may write, that is done for it ([notifier.instead]), but for what no other grant changes.
func (r *recorder) metadataRemedy() string {
	e := r.ev
	if e.Kind = trace.KindChmod; r.plan.Notify && len(e.Path) > 0 && !r.granted(&e) {
		if within(string(e.Path), "/proc") { // no directory of anybody's
			return ""
		}
		return remedyOf(&e)
	}
	return "--allow-gap " + gapMetadata
}

// sharedClause is what a run lacks that shares the host's namespaces, so that its filter
// refuses the call.
func sharedClause(e *trace.Event) string {
	switch e.Kind {
	case trace.KindSocket:
		return "network.namespace"
	case trace.KindChmod, trace.KindChown, trace.KindSetxattr:
		return gapMetadata
	}
	switch e.Syscall {
	case "utimensat", "utime", "utimes", "futimesat", "file_setattr":
		return gapMetadata
	case "ioctl":
		return "filesystem.attributes"
	}
	return "process.namespaces"
}
