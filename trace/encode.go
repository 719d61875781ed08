package trace

import (
	"encoding/base64"
	"net/netip"
	"strconv"
	"unicode/utf8"
)

// Bounds of one record. What is longer is cut and says so.
const (
	MaxPath = 64 << 10  // bytes of one path or name; Linux paths end at 4096
	MaxArgv = 256 << 10 // bytes of all arguments
	MaxEnv  = 64 << 10  // bytes of all names of the environment
	// MaxLine bounds an encoded record: every byte may become \uXXXX and be
	// repeated in base64. The Reader refuses longer lines.
	MaxLine = 8 << 20
)

// appendEvent appends e as one JSON line with its newline.
func (l *line) appendEvent(e *Event) {
	l.b = append(l.b, `{"v":1`...)
	l.number(`,"seq":`, e.Seq)
	l.number(`,"mono":`, e.Mono)
	l.b = l.stamp.append(append(l.b, `,"wall":"`...), e.Wall)
	l.b = append(l.b, '"')
	l.text(`,"kind":`, string(e.Kind))
	l.text(`,"phase":`, string(e.Phase))
	if e.CPUSeq != 0 {
		l.number(`,"cpu":`, uint64(e.CPU))
		l.number(`,"cpu_seq":`, e.CPUSeq)
	}
	l.who(e)
	l.call(e)
	l.file(e)
	l.argv(e)
	l.env(e)
	l.net(e)
	l.limit(e)
	l.verdict(e)
	l.end(e)
	l.output(e)
	l.loss(&e.Loss)
	l.run(e)
	l.summary(e)
	l.b = append(l.b, '}', '\n')
}

func (l *line) who(e *Event) {
	p := &e.Proc
	l.id(`,"proc":`, p.Boot, p.Start, p.Pid)
	if p.Pid != 0 {
		l.uint(`,"pid":`, uint64(p.Pid))
		if p.Tid != p.Pid {
			l.uint(`,"tid":`, uint64(p.Tid))
		}
		l.uint(`,"ns_pid":`, uint64(p.NSPid))
		l.uint(`,"ppid":`, uint64(p.PPid))
		if p.PStart != 0 {
			l.id(`,"parent":`, p.Boot, p.PStart, p.PPid)
		}
		l.number(`,"uid":`, uint64(p.UID))
	}
	l.bytes(`,"comm":`, `,"comm_b64":`, ``, e.Comm, 0)
	l.other(`,"child":`, `,"child_tid":`, `,"child_ns_pid":`, &e.Child)
	l.other(`,"target":`, `,"target_tid":`, `,"target_ns_pid":`, &e.Target)
}

func (l *line) other(key, keyTid, keyNS string, p *Proc) {
	if p.Pid == 0 {
		return
	}
	l.id(key, p.Boot, p.Start, p.Pid)
	if p.Tid != p.Pid {
		l.uint(keyTid, uint64(p.Tid))
	}
	l.uint(keyNS, uint64(p.NSPid))
}

func (l *line) call(e *Event) {
	l.text(`,"syscall":`, e.Syscall)
	if e.Syscall != "" || e.SyscallNr != 0 {
		l.int(`,"nr":`, int64(e.SyscallNr))
	}
	if e.Ret != 0 {
		l.int(`,"ret":`, e.Ret)
	}
	l.named(`,"errno":`, errnoNames[:], e.Errno, "E")
	l.uint(`,"count":`, e.Count)
}

func (l *line) file(e *Event) {
	l.bytes(`,"path":`, `,"path_b64":`, `,"path_len":`, e.Path, e.PathLen)
	l.text(`,"path_source":`, string(e.PathSource))
	l.bytes(`,"path_given":`, `,"path_given_b64":`, ``, e.PathGiven, 0)
	l.bytes(`,"to":`, `,"to_b64":`, `,"to_len":`, e.To, e.ToLen)
	l.bytes(`,"to_given":`, `,"to_given_b64":`, ``, e.ToGiven, 0)
	l.flag(`,"truncated":true`, e.cut())
	l.text(`,"access":`, e.Access)
	l.uint(`,"flags":`, e.Flags)
	l.uint(`,"resolve":`, e.Resolve)
	if e.Mode != 0 {
		l.b = append(strconv.AppendUint(append(l.b, `,"mode":"0`...), uint64(e.Mode), 8), '"')
	}
	if e.Kind == KindChown || e.NewUID != 0 || e.NewGID != 0 {
		l.int(`,"new_uid":`, e.NewUID)
		l.int(`,"new_gid":`, e.NewGID)
	}
	if e.DevMajor != 0 || e.DevMinor != 0 {
		l.b = strconv.AppendUint(append(l.b, `,"dev":"`...), uint64(e.DevMajor), 10)
		l.b = append(strconv.AppendUint(append(l.b, ':'), uint64(e.DevMinor), 10), '"')
	}
	l.uint(`,"ino":`, e.Ino)
	if e.Ctime != 0 {
		l.int(`,"ctime":`, e.Ctime)
	}
	if e.FD != 0 || e.Kind == KindInherit || e.Kind == KindReceive {
		l.int(`,"fd":`, int64(e.FD))
	}
	l.flag(`,"memfd":true`, e.Memfd)
	l.flag(`,"deleted":true`, e.Deleted)
	l.flag(`,"anon":true`, e.Anon)
	l.flag(`,"filtered":true`, e.Filtered)
	l.bytes(`,"name":`, `,"name_b64":`, `,"name_len":`, e.Name, e.NameLen)
}

// cut reports whether a path is not here whole.
func (e *Event) cut() bool {
	return e.PathLen != 0 || e.ToLen != 0 ||
		max(len(e.Path), len(e.To), len(e.PathGiven), len(e.ToGiven)) > MaxPath
}

// argv writes the argument list. An empty one is written for an exec, since a
// program can be started with none.
func (l *line) argv(e *Event) {
	kept, full := fit(e.Argv, MaxArgv)
	if len(kept) > 0 || e.Kind == KindExec {
		l.list(`,"argv":[`, `,"argv_b64":[`, kept)
	}
	cut := e.ArgvLen
	if cut == 0 && len(kept) < len(e.Argv) {
		cut = full
	}
	argc := uint64(e.Argc)
	if argc == 0 {
		argc = uint64(len(e.Argv))
	}
	l.uint(`,"argc":`, argc)
	l.uint(`,"argv_len":`, cut)
	l.flag(`,"argv_truncated":true`, cut != 0)
}

func (l *line) env(e *Event) {
	kept, full := fit(e.Env, MaxEnv)
	if len(kept) > 0 {
		l.list(`,"env":[`, `,"env_b64":[`, kept)
	}
	cut := e.EnvLen
	if cut == 0 && len(kept) < len(e.Env) {
		cut = full
	}
	l.uint(`,"env_len":`, cut)
	l.flag(`,"env_truncated":true`, cut != 0)
	l.bytes(`,"script":`, `,"script_b64":`, ``, e.Script, 0)
	l.bytes(`,"interp":`, `,"interp_b64":`, ``, e.Interp, 0)
	l.text(`,"script_sha256":`, e.ScriptSHA256)
}

// list writes texts, and the exact bytes of those that are not UTF-8 at the
// same index of a second list.
func (l *line) list(key, keyB64 string, items [][]byte) {
	l.b = append(l.b, key...)
	valid := true
	for i, a := range items {
		if i > 0 {
			l.b = append(l.b, ',')
		}
		var ok bool
		l.b, ok = appendJSON(l.b, a)
		valid = valid && ok
	}
	l.b = append(l.b, ']')
	if valid {
		return
	}
	l.b = append(l.b, keyB64...)
	for i, a := range items {
		if i > 0 {
			l.b = append(l.b, ',')
		}
		l.b = append(l.b, '"')
		if !utf8.Valid(a) {
			l.b = base64.StdEncoding.AppendEncode(l.b, a)
		}
		l.b = append(l.b, '"')
	}
	l.b = append(l.b, ']')
}

// fit returns the leading texts that a record has room for, and the bytes of
// all of them. A text counts 8 bytes more than it holds, so that many empty
// ones are bounded too.
func fit(args [][]byte, room int) (kept [][]byte, full uint64) {
	kept = args
	for i, a := range args {
		full += uint64(len(a))
		if room -= len(a) + 8; room < 0 && len(kept) > i {
			kept = args[:i]
		}
	}
	return kept, full
}

func (l *line) net(e *Event) {
	l.text(`,"family":`, e.Family)
	l.text(`,"proto":`, e.Proto)
	if e.Addr.IsValid() {
		l.addr(e.Addr)
		l.number(`,"port":`, uint64(e.Port))
	}
	l.uint(`,"bytes":`, e.Bytes)
	l.uint(`,"received":`, e.Received)
	l.uint(`,"duration":`, e.Duration)
	l.text(`,"end":`, e.End)
	l.text(`,"method":`, e.Method)
	l.uint(`,"status":`, uint64(e.Status))
	l.uint(`,"hidden":`, e.Hidden)
	l.text(`,"credential":`, e.Credential)
}

// addr leaves out the zone: it is a name that the caller chose.
func (l *line) addr(a netip.Addr) {
	l.b = append(l.b, `,"addr":"`...)
	l.b = a.WithZone("").AppendTo(l.b)
	l.b = append(l.b, '"')
}

func (l *line) limit(e *Event) {
	l.text(`,"limit":`, e.Limit)
	l.uint(`,"limit_value":`, e.LimitValue)
	l.uint(`,"limit_hits":`, e.LimitHits)
	l.text(`,"probe":`, e.Probe)
}

func (l *line) verdict(e *Event) {
	l.text(`,"verdict":`, string(e.Verdict))
	l.text(`,"layer":`, string(e.Layer))
	l.text(`,"rule":`, e.Rule)
	l.text(`,"rule_source":`, e.RuleSource)
	l.text(`,"remedy":`, e.Remedy)
	l.text(`,"certainty":`, string(e.Certainty))
	l.text(`,"blockers":`, e.Blockers)
}

func (l *line) end(e *Event) {
	if e.ExitCode != 0 || e.Signal == 0 && (e.Kind == KindExit || e.Kind == KindSummary) {
		l.int(`,"exit_code":`, int64(e.ExitCode))
	}
	l.named(`,"signal":`, signalNames[:], e.Signal, "SIG")
	l.flag(`,"core":true`, e.Core)
	l.uint(`,"utime":`, e.UTime)
	l.uint(`,"stime":`, e.STime)
	l.uint(`,"maxrss":`, e.MaxRSS)
	l.text(`,"reason":`, e.Reason)
}

func (l *line) output(e *Event) {
	l.text(`,"stream":`, e.Stream)
	l.uint(`,"kept":`, e.Kept)
	l.text(`,"sha256":`, e.SHA256)
	l.text(`,"hash_state":`, e.HashState)
}

func (l *line) loss(s *Loss) {
	if s.Class == "" {
		return
	}
	l.text(`,"lost_class":`, s.Class)
	l.text(`,"lost_cause":`, s.Cause)
	l.number(`,"lost_count":`, s.Count)
	l.uint(`,"lost_bytes":`, s.Bytes)
	l.number(`,"after_seq":`, s.AfterSeq)
	l.uint(`,"before_seq":`, s.BeforeSeq)
	if s.CPU >= 0 {
		l.number(`,"lost_cpu":`, uint64(s.CPU))
	}
	l.uint(`,"lost_first":`, s.First)
	l.uint(`,"lost_last":`, s.Last)
}

func (l *line) run(e *Event) {
	l.text(`,"run":`, e.Run)
	l.text(`,"boot_id":`, e.BootID)
	l.text(`,"tool":`, e.Tool)
	l.text(`,"kernel":`, e.Kernel)
	l.text(`,"tier":`, e.Tier)
	l.text(`,"plan_sha256":`, e.PlanSHA256)
	l.texts(`,"degraded":[`, e.Degraded)
	l.text(`,"text":`, e.Text)
}

func (l *line) summary(e *Event) {
	l.uint(`,"records":`, e.Records)
	l.uint(`,"lost":`, e.Lost)
	for i, c := range e.Counts {
		l.open(`,"counts":{`, i)
		l.b, _ = appendJSON(l.b, c.Name)
		l.b = strconv.AppendUint(append(l.b, ':'), c.N, 10)
	}
	l.flag("}", len(e.Counts) > 0)
	l.texts(`,"findings":[`, e.Findings)
}

// texts writes a list of texts; open begins it. An empty one is left out.
func (l *line) texts(open string, list []string) {
	for i, s := range list {
		l.open(open, i)
		l.b, _ = appendJSON(l.b, s)
	}
	l.flag("]", len(list) > 0)
}
