package trace

import "strconv"

// field is one entry of the record's schema. The order of the table is the
// order of the encoder; a test holds the two, and docs/record.md, together.
type field struct {
	name  string
	parse func(*decoder, *Event) error
}

var schema = []field{
	{"v", parseVersion},
	{"seq", number64(func(e *Event) *uint64 { return &e.Seq })},
	{"mono", number64(func(e *Event) *uint64 { return &e.Mono })},
	{"wall", func(d *decoder, e *Event) (err error) { e.Wall, err = d.wall(); return err }},
	{"kind", word(func(e *Event) *Kind { return &e.Kind })},
	{"phase", word(func(e *Event) *Phase { return &e.Phase })},
	{"cpu", number32(func(e *Event) *uint32 { return &e.CPU })},
	{"cpu_seq", number64(func(e *Event) *uint64 { return &e.CPUSeq })},

	{"proc", func(d *decoder, e *Event) error { return d.procID(&e.Proc) }},
	{"pid", parsePid},
	{"tid", number32(func(e *Event) *uint32 { return &e.Proc.Tid })},
	{"ns_pid", number32(func(e *Event) *uint32 { return &e.Proc.NSPid })},
	{"ppid", number32(func(e *Event) *uint32 { return &e.Proc.PPid })},
	{"parent", parseParent},
	{"uid", number32(func(e *Event) *uint32 { return &e.Proc.UID })},
	{"comm", raw(func(e *Event) *[]byte { return &e.Comm })},
	{"comm_b64", exact(func(e *Event) *[]byte { return &e.Comm })},
	{"child", func(d *decoder, e *Event) error { return d.procID(&e.Child) }},
	{"child_tid", number32(func(e *Event) *uint32 { return &e.Child.Tid })},
	{"child_ns_pid", number32(func(e *Event) *uint32 { return &e.Child.NSPid })},
	{"target", func(d *decoder, e *Event) error { return d.procID(&e.Target) }},
	{"target_tid", number32(func(e *Event) *uint32 { return &e.Target.Tid })},
	{"target_ns_pid", number32(func(e *Event) *uint32 { return &e.Target.NSPid })},

	{"syscall", word(func(e *Event) *string { return &e.Syscall })},
	{"nr", signed32(func(e *Event) *int32 { return &e.SyscallNr })},
	{"ret", func(d *decoder, e *Event) (err error) { e.Ret, err = d.int(64); return err }},
	{"errno", named(errnoNames[:], "E", func(e *Event) *int32 { return &e.Errno })},
	{"count", number64(func(e *Event) *uint64 { return &e.Count })},

	{"path", raw(func(e *Event) *[]byte { return &e.Path })},
	{"path_b64", exact(func(e *Event) *[]byte { return &e.Path })},
	{"path_len", number32(func(e *Event) *uint32 { return &e.PathLen })},
	{"path_source", word(func(e *Event) *PathSource { return &e.PathSource })},
	{"path_given", raw(func(e *Event) *[]byte { return &e.PathGiven })},
	{"path_given_b64", exact(func(e *Event) *[]byte { return &e.PathGiven })},
	{"to", raw(func(e *Event) *[]byte { return &e.To })},
	{"to_b64", exact(func(e *Event) *[]byte { return &e.To })},
	{"to_len", number32(func(e *Event) *uint32 { return &e.ToLen })},
	{"to_given", raw(func(e *Event) *[]byte { return &e.ToGiven })},
	{"to_given_b64", exact(func(e *Event) *[]byte { return &e.ToGiven })},
	{"truncated", func(d *decoder, _ *Event) error { return d.isTrue() }},
	{"access", word(func(e *Event) *string { return &e.Access })},
	{"flags", number64(func(e *Event) *uint64 { return &e.Flags })},
	{"resolve", number64(func(e *Event) *uint64 { return &e.Resolve })},
	{"mode", parseMode},
	{"new_uid", signed64(func(e *Event) *int64 { return &e.NewUID })},
	{"new_gid", signed64(func(e *Event) *int64 { return &e.NewGID })},
	{"dev", parseDev},
	{"ino", number64(func(e *Event) *uint64 { return &e.Ino })},
	{"ctime", func(d *decoder, e *Event) (err error) { e.Ctime, err = d.int(64); return err }},
	{"fd", signed32(func(e *Event) *int32 { return &e.FD })},
	{"memfd", truth(func(e *Event) *bool { return &e.Memfd })},
	{"deleted", truth(func(e *Event) *bool { return &e.Deleted })},
	{"anon", truth(func(e *Event) *bool { return &e.Anon })},
	{"filtered", truth(func(e *Event) *bool { return &e.Filtered })},
	{"name", raw(func(e *Event) *[]byte { return &e.Name })},
	{"name_b64", exact(func(e *Event) *[]byte { return &e.Name })},
	{"name_len", number32(func(e *Event) *uint32 { return &e.NameLen })},

	{"argv", texts(func(e *Event) *[][]byte { return &e.Argv })},
	{"argv_b64", textsExact(func(e *Event) *[][]byte { return &e.Argv })},
	{"argc", number32(func(e *Event) *uint32 { return &e.Argc })},
	{"argv_len", number64(func(e *Event) *uint64 { return &e.ArgvLen })},
	{"argv_truncated", func(d *decoder, _ *Event) error { return d.isTrue() }},
	{"env", texts(func(e *Event) *[][]byte { return &e.Env })},
	{"env_b64", textsExact(func(e *Event) *[][]byte { return &e.Env })},
	{"env_len", number64(func(e *Event) *uint64 { return &e.EnvLen })},
	{"env_truncated", func(d *decoder, _ *Event) error { return d.isTrue() }},
	{"script", raw(func(e *Event) *[]byte { return &e.Script })},
	{"script_b64", exact(func(e *Event) *[]byte { return &e.Script })},
	{"interp", raw(func(e *Event) *[]byte { return &e.Interp })},
	{"interp_b64", exact(func(e *Event) *[]byte { return &e.Interp })},
	{"script_sha256", word(func(e *Event) *string { return &e.ScriptSHA256 })},

	{"family", word(func(e *Event) *string { return &e.Family })},
	{"proto", word(func(e *Event) *string { return &e.Proto })},
	{"addr", func(d *decoder, e *Event) (err error) { e.Addr, err = d.addr(); return err }},
	{"port", parsePort},
	{"bytes", number64(func(e *Event) *uint64 { return &e.Bytes })},
	{"received", number64(func(e *Event) *uint64 { return &e.Received })},
	{"duration", number64(func(e *Event) *uint64 { return &e.Duration })},
	{"end", word(func(e *Event) *string { return &e.End })},

	{"method", word(func(e *Event) *string { return &e.Method })},
	{"status", number32(func(e *Event) *uint32 { return &e.Status })},
	{"hidden", number64(func(e *Event) *uint64 { return &e.Hidden })},
	{"credential", word(func(e *Event) *string { return &e.Credential })},

	{"limit", word(func(e *Event) *string { return &e.Limit })},
	{"limit_value", number64(func(e *Event) *uint64 { return &e.LimitValue })},
	{"limit_hits", number64(func(e *Event) *uint64 { return &e.LimitHits })},
	{"probe", word(func(e *Event) *string { return &e.Probe })},

	{"verdict", word(func(e *Event) *Verdict { return &e.Verdict })},
	{"layer", word(func(e *Event) *Layer { return &e.Layer })},
	{"rule", word(func(e *Event) *string { return &e.Rule })},
	{"rule_source", word(func(e *Event) *string { return &e.RuleSource })},
	{"remedy", word(func(e *Event) *string { return &e.Remedy })},
	{"certainty", word(func(e *Event) *Certainty { return &e.Certainty })},
	{"blockers", word(func(e *Event) *string { return &e.Blockers })},

	{"exit_code", signed32(func(e *Event) *int32 { return &e.ExitCode })},
	{"signal", named(signalNames[:], "SIG", func(e *Event) *int32 { return &e.Signal })},
	{"core", truth(func(e *Event) *bool { return &e.Core })},
	{"utime", number64(func(e *Event) *uint64 { return &e.UTime })},
	{"stime", number64(func(e *Event) *uint64 { return &e.STime })},
	{"maxrss", number64(func(e *Event) *uint64 { return &e.MaxRSS })},
	{"reason", word(func(e *Event) *string { return &e.Reason })},

	{"stream", word(func(e *Event) *string { return &e.Stream })},
	{"kept", number64(func(e *Event) *uint64 { return &e.Kept })},
	{"sha256", word(func(e *Event) *string { return &e.SHA256 })},
	{"hash_state", word(func(e *Event) *string { return &e.HashState })},

	{"lost_class", parseLossClass},
	{"lost_cause", word(func(e *Event) *string { return &e.Loss.Cause })},
	{"lost_count", number64(func(e *Event) *uint64 { return &e.Loss.Count })},
	{"lost_bytes", number64(func(e *Event) *uint64 { return &e.Loss.Bytes })},
	{"after_seq", number64(func(e *Event) *uint64 { return &e.Loss.AfterSeq })},
	{"before_seq", number64(func(e *Event) *uint64 { return &e.Loss.BeforeSeq })},
	{"lost_cpu", signed32(func(e *Event) *int32 { return &e.Loss.CPU })},
	{"lost_first", number64(func(e *Event) *uint64 { return &e.Loss.First })},
	{"lost_last", number64(func(e *Event) *uint64 { return &e.Loss.Last })},

	{"run", word(func(e *Event) *string { return &e.Run })},
	{"boot_id", word(func(e *Event) *string { return &e.BootID })},
	{"tool", word(func(e *Event) *string { return &e.Tool })},
	{"kernel", word(func(e *Event) *string { return &e.Kernel })},
	{"tier", word(func(e *Event) *string { return &e.Tier })},
	{"plan_sha256", word(func(e *Event) *string { return &e.PlanSHA256 })},
	{"degraded", parseTexts(func(e *Event) *[]string { return &e.Degraded })},
	{"text", word(func(e *Event) *string { return &e.Text })},

	{"records", number64(func(e *Event) *uint64 { return &e.Records })},
	{"lost", number64(func(e *Event) *uint64 { return &e.Lost })},
	{"counts", parseCounts},
	{"findings", parseTexts(func(e *Event) *[]string { return &e.Findings })},
}

type parser = func(*decoder, *Event) error

func number64(at func(*Event) *uint64) parser {
	return func(d *decoder, e *Event) (err error) { *at(e), err = d.uint(64); return err }
}

func number32(at func(*Event) *uint32) parser {
	return func(d *decoder, e *Event) error {
		v, err := d.uint(32)
		*at(e) = uint32(v)
		return err
	}
}

func signed32(at func(*Event) *int32) parser {
	return func(d *decoder, e *Event) error {
		v, err := d.int(32)
		*at(e) = int32(v)
		return err
	}
}

func signed64(at func(*Event) *int64) parser {
	return func(d *decoder, e *Event) (err error) { *at(e), err = d.int(64); return err }
}

// truth is for fields that are written when true only.
func truth(at func(*Event) *bool) parser {
	return func(d *decoder, e *Event) error { *at(e) = true; return d.isTrue() }
}

func word[T ~string](at func(*Event) *T) parser {
	return func(d *decoder, e *Event) error {
		s, err := d.word()
		*at(e) = T(s)
		return err
	}
}

func raw(at func(*Event) *[]byte) parser {
	return func(d *decoder, e *Event) (err error) { *at(e), err = d.str(); return err }
}

// exact replaces the readable form of a text by its bytes.
func exact(at func(*Event) *[]byte) parser {
	return func(d *decoder, e *Event) (err error) { *at(e), err = d.base64(); return err }
}

func named(names []string, prefix string, at func(*Event) *int32) parser {
	return func(d *decoder, e *Event) error {
		s, err := d.str()
		if err != nil {
			return err
		}
		n, ok := numberOf(names, string(s), prefix)
		if !ok {
			return errType
		}
		*at(e) = n
		return nil
	}
}

func parseVersion(d *decoder, _ *Event) error {
	v, err := d.uint(32)
	if err == nil && v != Version {
		return newer(v)
	}
	return err
}

type newer uint64

func (n newer) Error() string {
	return "schema version " + strconv.FormatUint(uint64(n), 10) + " is not one that this version can read"
}

// parsePid checks that the pid is the one in the id.
func parsePid(d *decoder, e *Event) error {
	v, err := d.uint(32)
	if err != nil || uint32(v) != e.Proc.Pid {
		return errType
	}
	return nil
}

func parseParent(d *decoder, e *Event) error {
	p := Proc{}
	if err := d.procID(&p); err != nil || p.Pid != e.Proc.PPid || p.Boot != e.Proc.Boot {
		return errType
	}
	e.Proc.PStart = p.Start
	return nil
}

func parseMode(d *decoder, e *Event) error {
	s, err := d.str()
	if err != nil || len(s) < 2 || s[0] != '0' {
		return errType
	}
	v, err := strconv.ParseUint(string(s[1:]), 8, 32)
	if err != nil {
		return errType
	}
	e.Mode = uint32(v)
	return nil
}

func parseDev(d *decoder, e *Event) error {
	s, err := d.str()
	if err != nil {
		return err
	}
	for i, c := range s {
		if c != ':' {
			continue
		}
		major, err1 := strconv.ParseUint(string(s[:i]), 10, 32)
		minor, err2 := strconv.ParseUint(string(s[i+1:]), 10, 32)
		e.DevMajor, e.DevMinor = uint32(major), uint32(minor)
		if err1 == nil && err2 == nil {
			return nil
		}
		break
	}
	return errType
}

func parsePort(d *decoder, e *Event) error {
	v, err := d.uint(16)
	e.Port = uint16(v)
	return err
}

func parseLossClass(d *decoder, e *Event) (err error) {
	e.Loss.CPU = -1
	e.Loss.Class, err = d.word()
	return err
}

func texts(at func(*Event) *[][]byte) parser {
	return func(d *decoder, e *Event) error {
		list := at(e)
		return d.list(func(int) error {
			s, err := d.str()
			*list = append(*list, s)
			return err
		})
	}
}

// textsExact replaces the readable form of the texts that are not UTF-8 by their bytes.
func textsExact(at func(*Event) *[][]byte) parser {
	return func(d *decoder, e *Event) error {
		list := *at(e)
		return d.list(func(i int) error {
			s, err := d.base64()
			if err == nil && i >= len(list) {
				return errType
			}
			if len(s) > 0 {
				list[i] = s
			}
			return err
		})
	}
}

func parseCounts(d *decoder, e *Event) error {
	if !d.eat('{') {
		return errType
	}
	for first := true; !d.eat('}'); first = false {
		if !first && !d.eat(',') {
			return errSyntax
		}
		name, err := d.word()
		if err != nil || !d.eat(':') {
			return errSyntax
		}
		n, err := d.uint(64)
		if err != nil {
			return err
		}
		e.Counts = append(e.Counts, Count{name, n})
	}
	return nil
}

func parseTexts(at func(*Event) *[]string) parser {
	return func(d *decoder, e *Event) error {
		return d.list(func(int) error {
			s, err := d.word()
			*at(e) = append(*at(e), s)
			return err
		})
	}
}
