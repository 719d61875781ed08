// Package policy parses, validates, merges and explains agentguard policies.
//
// A policy says what a run is granted; it never says how. The package knows no
// kernel mechanism, touches no file except those it is told to read, and
// imports nothing else of this module. The names in the YAML file are fixed;
// docs/policy.md documents each.
package policy

import "strconv"

// Source says where a clause came from, so that an error or a denial can name
// the line that would have to change. The zero Source is a built-in default.
type Source struct {
	File      string // path as given on the command line or "/etc/agentguard/policy.yaml"; "" when not from a file
	Line, Col int    // 1-based; 0 when not from a file
	Flag      string // "--ro", "-w": the flag that set it; "" when not from a flag
	Caller    string // what of the caller's own set it, such as "cgroup /user.slice"; "" when it did not
}

// String returns "FILE:LINE:COL", "flag --ro", "the caller's cgroup /x" or "default", always printable.
func (s Source) String() string {
	switch {
	case s.File != "":
		return printable(s.File) + ":" + strconv.Itoa(s.Line) + ":" + strconv.Itoa(s.Col)
	case s.Flag != "":
		return "flag " + s.Flag
	case s.Caller != "":
		return "the caller's " + printable(s.Caller)
	}
	return "default"
}

// IsDefault reports whether nobody set the clause.
func (s Source) IsDefault() bool { return s == Source{} }

// Text is a scalar clause: Value is a word, a name or an absolute path.
type Text struct {
	Value  string
	Source Source
}

// Limit is a numeric bound. N is bytes, a count or nanoseconds, as the field
// that holds it says.
type Limit struct {
	N         int64
	Unlimited bool // written as "none"
	Source    Source
}

// Mount grants one host path. At is where the command sees it; it equals Path
// unless the clause was written PATH:AT.
type Mount struct {
	Path, At string
	Source   Source
}

// Workspace is the directory the command starts in.
type Workspace struct {
	Path       string // "" means that nothing of the current directory is granted
	Mode       string // "cow", "rw" or "ro"
	Source     Source // of Path
	ModeSource Source
}

// Env is one variable: Name is set to the literal Value.
type Env struct {
	Name, Value string
	Source      Source
}

// Endpoint is one entry of the egress allowlist, parsed.
type Endpoint struct {
	Text    string // as written
	Proto   string // "tcp" or "udp"
	Host    string // a name, "*.name", or "" when Prefix is set
	Prefix  string // canonical CIDR when the entry is an address or a range, else ""
	Port    uint16 // lowest port
	PortEnd uint16 // highest port, equal to Port when one port is meant
	Source  Source
}

// Resolve pins Name to Addr, an IP address in text form, for the run.
type Resolve struct {
	Name, Addr string
	Source     Source
}

// Policy is what a run is granted, merged from defaults, files and flags and
// bounded by the ceiling. Lists are in the order in which they were added.
type Policy struct {
	Runtime Text // "process" or "microvm"

	ReadOnly       []Mount
	Writable       []Mount
	Cow            []Mount
	Workspace      Workspace
	Toolchains     []Text // "auto", directories, or "none" alone
	Caches         []Text // CacheNames or "auto"
	MaxOutputBytes Limit  // bytes, everything written
	MaxFileBytes   Limit  // bytes, one file
	MaxFiles       Limit  // files and directories
	Upper          Text   // "ram", "auto" or "disk"
	Persistence    Text   // "ephemeral" or "keep"
	Commit         Text   // "never", "ask" or "success"
	Protect        []Text

	Egress         Text // "deny" or "allowlist"
	Allow          []Endpoint
	AllowPrivate   []Text
	Resolve        []Resolve
	Proxy          Text // "env" or "none"
	Unix           []Text
	Listen         Text    // "loopback" or "deny"
	Publish        []Limit // N is a port
	Broker         []Text  // names of brokers: APIs that are called with a credential of the host's
	MaxConnections Limit
	MaxEgressBytes Limit

	MaxCPU       Limit // nanoseconds over the whole tree
	MaxMemory    Limit // bytes over the whole tree
	MaxWall      Limit // nanoseconds
	MaxTasks     Limit // tasks (threads too) besides agentguard's own
	MaxOpenFiles Limit // descriptors a process
	User         Text  // "" or a numeric uid
	SeccompAllow []Text

	EnvAllow []Text // names passed through from the caller; "FOO_*" allowed
	EnvSet   []Env

	Secrets []Text // names of dispatch actions; empty means none
	Stdin   Text   // "pass" or "null"

	MaxStdout Limit // bytes of stdout plus stderr; when not a default, the caller's copy is cut too
	Terminal  Text  // "sanitize" or "raw"

	TraceFiles          Text // "all" or "changes"
	TraceSyscalls       bool
	TraceSyscallsSource Source
	OnLoss              Text  // "record", "throttle" or "kill"
	MaxTraceBytes       Limit // bytes
	Audit               Text  // "auto" or "off"

	AllowGaps []Text
	Unsafe    []Text

	// Set by Bound: directories of the host that toolchains and caches, which are
	// found and not named, must lie in. Nil is anywhere.
	ToolchainRoots, CacheRoots []string

	Ceilings []*Ceiling // that have bounded it
}
