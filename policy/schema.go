package policy

import (
	"strings"
)

// form is what a key holds in the YAML file.
type form int

const (
	one    form = iota // a single value
	many               // a list of values
	named              // a mapping of names to values
	worded             // a list, or one of the words of its field
)

// kinds is the set of YAML types that one value of a key may have.
type kinds uint

const (
	isString kinds = 1 << iota
	isInteger
	isNumber // with a fraction
	isBool
	isNull
)

const (
	isQuantity = isString | isInteger | isNumber
	isCount    = isString | isInteger
)

// key is one leaf of the schema.
type key struct {
	name  string // dotted, as in the file without the leading "sandbox."
	flag  string // the flag that sets it, without dashes; "" when none does
	form  form
	kinds kinds
	field field
}

// schema lists every key in the order of the documentation.
func schema() []key {
	var all []key
	all = append(all, filesystemKeys()...)
	all = append(all, networkKeys()...)
	all = append(all, processKeys()...)
	return append(all, recordKeys()...)
}

func filesystemKeys() []key {
	readable := func(p *Policy) []Mount { return concat(p.ReadOnly, p.Cow, p.Writable) }
	staged := func(p *Policy) []Mount { return concat(p.Cow, p.Writable) }
	mode := func(p *Policy) (*string, *Source) { return &p.Workspace.Mode, &p.Workspace.ModeSource }
	return []key{
		{"runtime", "", one, isString, word(text(func(p *Policy) *Text { return &p.Runtime }), "microvm", "process")},
		{"filesystem.read_only_mounts", "ro", many, isString, mounts(func(p *Policy) *[]Mount { return &p.ReadOnly }, readable)},
		{"filesystem.writable_mounts", "rw", many, isString, mounts(func(p *Policy) *[]Mount { return &p.Writable }, nil)},
		{"filesystem.cow_mounts", "cow", many, isString, mounts(func(p *Policy) *[]Mount { return &p.Cow }, staged)},
		{"filesystem.workspace.path", "workspace", one, isString, workspacePath()},
		{"filesystem.workspace.mode", "mode", one, isString, word(mode, "ro", "cow", "rw")},
		{"filesystem.toolchains", "toolchains", worded, isString, toolchains()},
		{"filesystem.caches", "cache", many, isString, texts(func(p *Policy) *[]Text { return &p.Caches }, parseCache, autoCovers(equal))},
		{"filesystem.max_output_bytes", "output", one, isQuantity, size(func(p *Policy) *Limit { return &p.MaxOutputBytes }, 1)},
		{"filesystem.max_file_bytes", "file-size", one, isQuantity, size(func(p *Policy) *Limit { return &p.MaxFileBytes }, 1)},
		{"filesystem.max_files", "files", one, isCount, count(func(p *Policy) *Limit { return &p.MaxFiles }, maxCount)},
		{"filesystem.upper", "upper", one, isString, word(text(func(p *Policy) *Text { return &p.Upper }), "ram", "auto", "disk")},
		{"filesystem.persistence", "", one, isString, word(text(func(p *Policy) *Text { return &p.Persistence }), "ephemeral", "keep")},
		{"filesystem.commit", "commit", one, isString, word(text(func(p *Policy) *Text { return &p.Commit }), "never", "ask", "success")},
		{"filesystem.protect", "", many, isString, texts(func(p *Policy) *[]Text { return &p.Protect }, parseProtect, nil)},
	}
}

func networkKeys() []key {
	return []key{
		{"network.egress", "", one, isString, word(text(func(p *Policy) *Text { return &p.Egress }), "deny", "allowlist")},
		{"network.allowlist", "allow", many, isString, endpoints()},
		{"network.allow_private", "", many, isString, texts(func(p *Policy) *[]Text { return &p.AllowPrivate }, parsePrivate, privateCovers)},
		{"network.resolve", "resolve", named, isString, resolves()},
		{"network.proxy", "proxy", one, isString, word(text(func(p *Policy) *Text { return &p.Proxy }), "none", "env")},
		{"network.unix", "unix", many, isString, texts(func(p *Policy) *[]Text { return &p.Unix }, parsePath, pathCovers)},
		{"network.listen", "", one, isString, word(text(func(p *Policy) *Text { return &p.Listen }), "deny", "loopback")},
		{"network.publish", "publish", many, isCount, ports()},
		{"network.broker", "broker", many, isString, texts(func(p *Policy) *[]Text { return &p.Broker }, parseBroker, equal)},
		{"network.max_connections", "", one, isCount, count(func(p *Policy) *Limit { return &p.MaxConnections }, maxCount)},
		{"network.max_egress_bytes", "", one, isQuantity, size(func(p *Policy) *Limit { return &p.MaxEgressBytes }, 1)},
	}
}

func processKeys() []key {
	return []key{
		{"process.max_cpu_seconds", "cpu", one, isQuantity, span(func(p *Policy) *Limit { return &p.MaxCPU })},
		{"process.max_memory_mb", "memory", one, isQuantity, memory()},
		{"process.max_wall_seconds", "wall", one, isQuantity, span(func(p *Policy) *Limit { return &p.MaxWall })},
		{"process.max_subprocesses", "pids", one, isCount, count(func(p *Policy) *Limit { return &p.MaxTasks }, maxTasks)},
		{"process.max_open_files", "", one, isCount, count(func(p *Policy) *Limit { return &p.MaxOpenFiles }, maxFiles)},
		{"process.user", "user", one, isCount, user()},
		{"process.seccomp_allow", "", many, isString, texts(func(p *Policy) *[]Text { return &p.SeccompAllow }, parseSyscall, equal)},
		{"env.allowlist", "env", many, isString, texts(func(p *Policy) *[]Text { return &p.EnvAllow }, parseEnvName, envCovers)},
		{"env.set", "env", named, isString | isInteger | isNumber | isBool, environment()},
	}
}

func recordKeys() []key {
	syscalls := func(p *Policy) (*bool, *Source) { return &p.TraceSyscalls, &p.TraceSyscallsSource }
	return []key{
		{"secrets", "dispatch", worded, isString, secrets{texts(func(p *Policy) *[]Text { return &p.Secrets }, parseAction, equal)}},
		{"stdin", "", one, isString | isNull, word(text(func(p *Policy) *Text { return &p.Stdin }), "null", "pass")},
		{"output.max_stdout_bytes", "stdout", one, isQuantity, size(func(p *Policy) *Limit { return &p.MaxStdout }, 1)},
		{"output.terminal", "", one, isString, word(text(func(p *Policy) *Text { return &p.Terminal }), "sanitize", "raw")},
		{"trace.files", "trace", one, isString, word(text(func(p *Policy) *Text { return &p.TraceFiles }), "all", "changes")},
		{"trace.syscalls", "", one, isBool, flagged{syscalls}},
		{"trace.on_loss", "on-loss", one, isString, word(text(func(p *Policy) *Text { return &p.OnLoss }), "kill", "throttle", "record")},
		{"trace.max_bytes", "", one, isQuantity, size(func(p *Policy) *Limit { return &p.MaxTraceBytes }, 1)},
		{"trace.audit", "", one, isString, word(text(func(p *Policy) *Text { return &p.Audit }), "auto", "off")},
		{"allow_gaps", "allow-gap", many, isString, texts(func(p *Policy) *[]Text { return &p.AllowGaps }, parseGap, equal)},
		{"unsafe", "", many, isString, texts(func(p *Policy) *[]Text { return &p.Unsafe }, parseUnsafe, equal)},
	}
}

// words are what may stand in the place of a list, the default first.
func (k key) words() []string {
	if f, ok := k.field.(interface{ listWords() []string }); ok {
		return f.listWords()
	}
	return nil
}

func concat(lists ...[]Mount) []Mount {
	var all []Mount
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// children returns the names directly under prefix ("" is the top), in order.
func children(keys []key, prefix string) []string {
	var names []string
	for _, k := range keys {
		rest, ok := k.name, true
		if prefix != "" {
			rest, ok = strings.CutPrefix(k.name, prefix+".")
		}
		name, _, _ := strings.Cut(rest, ".")
		if ok && (len(names) == 0 || names[len(names)-1] != name) {
			names = append(names, name)
		}
	}
	return names
}

// lookup finds a leaf by its dotted name.
func lookup(keys []key, name string) (key, bool) {
	for _, k := range keys {
		if k.name == name {
			return k, true
		}
	}
	return key{}, false
}
