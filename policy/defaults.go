package policy

import "time"

// Context is what the defaults depend on. Nothing else about the host does.
type Context struct {
	MemTotal    int64  // bytes of RAM, from /proc/meminfo; 0 when unknown
	Cwd         string // absolute path of the caller's current directory
	Interactive bool   // stdin and stdout are terminals
}

// The defaults of the limits; docs/policy.md says why each.
const (
	defaultTasks     = 512
	defaultOutput    = 1 << 30
	defaultStdout    = 16 << 20
	defaultTrace     = 1 << 30
	defaultOpenFiles = 4096
	defaultTime      = int64(time.Hour)
	leastMemory      = 512 << 20 // when the size of the RAM is not known
)

// Defaults returns the built-in policy, the first argument of Merge: the
// current directory as a read-only workspace, no network, and a limit on
// everything. Every Source in it is the zero Source.
func Defaults(c Context) *File {
	base := defaults(c)
	f := &File{keys: map[string]Source{}}
	f.add("", value{}, func(p *Policy) *problem {
		*p = base
		// Merge edits lists in place; each policy gets its own.
		p.EnvAllow = append([]Text(nil), base.EnvAllow...)
		p.Toolchains = append([]Text(nil), base.Toolchains...)
		return nil
	})
	return f
}

func defaults(c Context) Policy {
	hours := Limit{N: defaultTime, Unlimited: false}
	if c.Interactive {
		hours = Limit{Unlimited: true}
	}
	memory := c.MemTotal / 2
	if memory < minMemory {
		memory = leastMemory
	}
	unlimited := Limit{Unlimited: true}
	return Policy{
		Runtime:        Text{Value: "process"},
		Workspace:      Workspace{Path: c.Cwd, Mode: "cow"},
		Toolchains:     []Text{{Value: auto}},
		MaxOutputBytes: Limit{N: defaultOutput},
		MaxFileBytes:   unlimited,
		MaxFiles:       unlimited,
		Upper:          Text{Value: "auto"},
		Persistence:    Text{Value: "ephemeral"},
		Commit:         Text{Value: "never"},
		Egress:         Text{Value: "deny"},
		Proxy:          Text{Value: "env"},
		Listen:         Text{Value: "loopback"},
		MaxConnections: unlimited,
		MaxEgressBytes: unlimited,
		MaxCPU:         hours,
		MaxMemory:      Limit{N: memory},
		MaxWall:        hours,
		MaxTasks:       Limit{N: defaultTasks},
		MaxOpenFiles:   Limit{N: defaultOpenFiles},
		EnvAllow:       []Text{{Value: "LANG"}, {Value: "LC_ALL"}, {Value: "TERM"}},
		Stdin:          Text{Value: "pass"},
		MaxStdout:      Limit{N: defaultStdout},
		Terminal:       Text{Value: "sanitize"},
		TraceFiles:     Text{Value: "all"},
		TraceSyscalls:  true,
		OnLoss:         Text{Value: "record"},
		MaxTraceBytes:  Limit{N: defaultTrace},
		Audit:          Text{Value: "auto"},
	}
}
