// Package suggest works out, from the records of runs, the smallest policy under
// which the same commands get what they used and what they were refused.
//
// It reads plans and records and knows no mechanism. What a path of the host is
// it asks of a function that looks as the caller.
package suggest

import (
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"
)

// Plan is what is read of a run's plan.json.
type Plan struct {
	View []Entry  `json:"view"`
	Env  []string `json:"env"`       // names
	Told []string `json:"env_found"` // of these, what toolchains and caches are found by

	Egress Egress `json:"egress"`
}

// Entry is one entry of the view: At inside is From on the host.
type Entry struct {
	Op, At, From, Access, Clause string

	Cache string
}

// ParsePlan reads plan.json.
func ParsePlan(b []byte) (*Plan, error) {
	p := &Plan{}
	if err := json.Unmarshal(b, p); err != nil {
		return nil, fmt.Errorf("suggest: plan: %w", err)
	}
	return p, nil
}

// Needs is what runs used and missed.
type Needs struct {
	// Exists says what lies at a path of the host, "" for nothing, as the caller
	// sees it. A path that is nowhere is no need.
	Exists func(path string) string
	// Unsafe lets in what a policy allows only with a word under unsafe, paths
	// that usually hold credentials, and system calls outside the table.
	Unsafe bool

	grants    map[grant]string // of the runs: the mode that each needs
	workspace string
	mode      string          // of the workspace
	paths     map[string]bool // further paths, and whether they are written
	hosts     map[string]bool // entries of the allowlist
	private   map[string]bool // what their names may lead to
	resolve   map[string]string
	publish   map[string]bool // ports
	untold    bool            // a record tells of no files
	brokers   map[string]bool
	sockets   map[string]bool
	calls     map[string]bool
	env       map[string]bool
	limits    map[string]uint64 // that were met, by their key: twice the value
	words     map[string]bool   // under unsafe
	looked    map[string]bool   // paths that were asked for remarks
	caches    map[string]bool   // by name
	tools     map[string]bool   // toolchains that were named
	left      map[string]bool   // remarks: what is left out, and why
}

// grant is a mount that a policy asked for.
type grant struct{ at, from string }

// maxPaths bounds what is kept of hostile records.
const maxPaths = 10_000

// New returns empty needs.
func New(exists func(string) string, unsafe bool) *Needs {
	return &Needs{
		Exists: exists, Unsafe: unsafe,
		grants: map[grant]string{}, paths: map[string]bool{}, hosts: map[string]bool{}, brokers: map[string]bool{}, sockets: map[string]bool{}, calls: map[string]bool{},
		env: map[string]bool{}, limits: map[string]uint64{}, words: map[string]bool{}, left: map[string]bool{}, looked: map[string]bool{},
		caches: map[string]bool{}, tools: map[string]bool{}, private: map[string]bool{}, resolve: map[string]string{}, publish: map[string]bool{},
	}
}

// Add takes in one run. The judgement of its record is returned: what is
// missing from a record is missing from the needs.
func (n *Needs) Add(p *Plan, record io.Reader) (trace.Judgement, error) {
	for _, name := range p.Env {
		if !given[name] && !policy.SecretName(name) && !slices.Contains(p.Told, name) {
			n.env[name] = true
		}
	}
	for _, e := range p.View {
		if e.workspace() {
			n.workspace, n.mode = e.From, widest(n.mode, "ro")
		}
	}
	r := trace.NewReader(record)
	err := r.Each(func(e *trace.Event) error {
		n.event(p, e)
		return nil
	})
	j, _ := r.Report().Judge()
	return j, err
}

// given are the variables that every run has.
var given = map[string]bool{
	"PATH": true, "HOME": true, "TMPDIR": true, "USER": true, "LOGNAME": true, "SHELL": true, "LANG": true, "LC_ALL": true, "TERM": true,
}

func (e *Entry) workspace() bool {
	return e.granted() && strings.HasPrefix(e.Clause, "filesystem.workspace")
}

// granted reports whether the entry is a mount that a policy asked for, or the
// workspace, for which nobody has to ask.
func (e *Entry) granted() bool {
	for _, key := range []string{"read_only_mounts", "writable_mounts", "cow_mounts", "workspace"} {
		if strings.HasPrefix(e.Clause, "filesystem."+key) {
			return e.Op == "bind" || e.Op == "cow" || e.Op == "path" // of a run without a view
		}
	}
	return false
}

// mode is how the entry is shown: ro, cow or rw.
func (e *Entry) mode() string {
	switch {
	case e.Op == "cow":
		return "cow"
	case e.Access == "rw":
		return "rw"
	}
	return "ro"
}

// widest returns the mode that lets more.
func widest(a, b string) string {
	order := []string{"", "ro", "cow", "rw"}
	if slices.Index(order, a) > slices.Index(order, b) {
		return a
	}
	return b
}

func (n *Needs) event(p *Plan, e *trace.Event) {
	if e.Kind == trace.KindStart {
		n.start(p, e)
	}
	if e.Phase == trace.PhaseEnvelope {
		return
	}
	switch e.Kind {
	case trace.KindLimit:
		n.limit(e)
	case trace.KindConnect, trace.KindSend:
		n.connect(p, e)
	case trace.KindDeny:
		if strings.HasPrefix(e.Remedy, "process.seccomp_allow") && len(n.calls) < maxPaths {
			n.calls[e.Syscall] = true
		}
	default:
		if access, ok := accessOf(e); ok {
			n.path(p, e, e.Path, access)
			if len(e.To) > 0 {
				n.path(p, e, e.To, "dir")
			}
		}
	}
}

// accessOf returns what a file event needs: "r", "w", or "dir" when it needs to
// change the directory that the path lies in.
func accessOf(e *trace.Event) (access string, ok bool) {
	switch e.Kind {
	case trace.KindOpen:
		if e.Access == "w" || e.Access == "rw" {
			return "w", true
		}
		return "r", true
	case trace.KindExec, trace.KindExecFail, trace.KindMmapExec, trace.KindInherit:
		return "r", true
	case trace.KindTruncate, trace.KindChmod, trace.KindChown, trace.KindSetxattr, trace.KindMmapWrite:
		return "w", true
	case trace.KindCreate, trace.KindUnlink, trace.KindRename, trace.KindLink, trace.KindMkdir:
		return "dir", true
	}
	return "", false
}

// path notes one use of a path, or one refusal.
func (n *Needs) path(p *Plan, e *trace.Event, raw []byte, access string) {
	at := path.Clean(string(raw))
	failed := e.Errno != 0
	if len(raw) == 0 || raw[0] != '/' || e.PathLen != 0 || failed && !e.Denied() && e.Errno != enoent {
		return
	}
	switch in := p.holder(at); {
	case in != nil && in.granted():
		n.used(in, access)
	case in != nil && in.Cache != "":
		n.caches[in.Cache] = true
	case in != nil && in.toolchain():
		n.tool(in, access, e)
	case in != nil && !failed:
	case in != nil && in.At == at, in != nil && e.Errno != enoent:
		if access != "r" && e.Denied() {
			n.leave("writing %s: it is part of every run's view", trace.Quote(in.At))
		}
	case !failed || e.Kind == trace.KindExecFail && !e.Denied() && p.visible(at):
	case !e.Denied():
		n.probed(at)
	default:
		n.missed(at, access)
	}
}

// toolchain reports a toolchain of the caller's, found or named.
func (e *Entry) toolchain() bool { return strings.HasPrefix(e.Clause, "filesystem.toolchains") }

// tool notes the use of a toolchain. What is found by default needs no word.
func (n *Needs) tool(in *Entry, access string, e *trace.Event) {
	if access != "r" && e.Denied() {
		n.leave("writing %s: toolchains are read-only", trace.Quote(in.At))
	}
	if e.Errno == 0 && !strings.HasSuffix(in.Clause, " (default)") {
		n.tools[in.From] = true
	}
}

// probed remarks on a path that was looked for where programs look for what may
// or may not be there, such as below /etc.
func (n *Needs) probed(at string) {
	if n.looked[at] || len(n.looked) >= maxPaths {
		return
	}
	n.looked[at] = true
	if !outOfReach(at) && trace.Advisable([]byte(at)) && n.Exists(at) != "" {
		n.leave("%s: it was looked for, and may be missed", trace.Quote(at))
	}
}

// outOfReach reports whether a path lies where every run has its own.
func outOfReach(at string) bool {
	return slices.ContainsFunc([]string{"/proc", "/sys", "/dev", "/run", "/tmp"}, func(dir string) bool { return below(at, dir) })
}

const enoent = 2 // on every architecture

// holder is the deepest entry that a path lies in; nil for the synthetic root.
func (p *Plan) holder(at string) *Entry {
	var best *Entry
	for i := range p.View {
		e := &p.View[i]
		if e.Op == "pin" || e.Op == "dir" && e.Access == "" { // what the view is only built of
			continue
		}
		if below(at, e.At) && (best == nil || len(e.At) > len(best.At)) {
			best = e
		}
	}
	return best
}

// visible reports whether the directory of a path is in the view.
func (p *Plan) visible(at string) bool { return p.holder(path.Dir(at)) != nil }

func below(p, dir string) bool { return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/") }

// used notes that a grant of the run was used. Where it was only readable and a
// write was refused, the least that lets the write pass is a staged copy, which
// only a directory can be.
func (n *Needs) used(in *Entry, access string) {
	mode := "ro"
	if access != "r" {
		mode = in.mode()
		if mode == "ro" {
			mode = "rw"
			if n.Exists(in.From) == "a directory" {
				mode = "cow"
			}
		}
	}
	if in.workspace() {
		n.mode = widest(n.mode, mode)
		return
	}
	g := grant{in.At, in.From}
	n.grants[g] = widest(n.grants[g], mode)
}

// missed notes a path that the view did not have.
func (n *Needs) missed(at, access string) {
	if access == "dir" {
		at, access = path.Dir(at), "w"
	}
	if outOfReach(at) {
		return
	}
	if write, known := n.paths[at]; known {
		n.paths[at] = write || access == "w"
		return
	}
	switch {
	case len(n.paths) >= maxPaths:
		n.leave("paths beyond the first %d", maxPaths)
		return
	case at == "/": // agentguard makes it: nothing can be mounted there
		return
	case !n.Unsafe && !trace.Advisable([]byte(at)):
		n.leave("%s: it usually holds credentials", trace.Quote(at))
		return
	case n.Exists(at) == "":
		return // it is not on the host either
	}
	n.paths[at] = access == "w"
}

func (n *Needs) leave(format string, a ...any) {
	if len(n.left) < 100 {
		n.left[fmt.Sprintf(format, a...)] = true
	}
}

// connect notes a peer outside: what goes to loopback stays inside.
func (n *Needs) connect(p *Plan, e *trace.Event) {
	switch {
	case e.Family == "unix" && len(e.Path) > 0 && e.Path[0] == '/':
		in := p.holder(path.Clean(string(e.Path)))
		if e.Denied() || in != nil && strings.HasPrefix(in.Clause, "network.unix") {
			n.socket(path.Clean(string(e.Path)))
		}
	case e.End != "" && !e.Denied():
		n.relayed(p, e)
	case e.Rule == "network.broker": // what a broker does is no need of the command's
	case strings.HasSuffix(string(e.Name), brokerDomain):
		if name := strings.TrimSuffix(string(e.Name), brokerDomain); !e.Denied() && brokerName(name) && len(n.brokers) < maxPaths {
			n.brokers[name] = true
		}
	case e.Kind == trace.KindConnect && e.Proto == "udp" && !e.Denied(): // sends nothing: C libraries ask so for the way to an address
	case !e.Addr.IsValid() || e.Addr.Unmap().IsLoopback() || e.Addr.IsUnspecified() || len(n.hosts) >= maxPaths:
	case e.Denied() && !n.Unsafe && e.Addr.Unmap().IsLinkLocalUnicast():
		n.leave("%s: hosts of clouds give credentials at such addresses", trace.Quote(endpoint(e)))
	case e.Denied() || e.Errno == 0:
		n.hosts[endpoint(e)] = true
	}
}

func (n *Needs) socket(at string) {
	if word := policy.SocketWord(at); word != "" {
		if !n.Unsafe {
			n.leave("the socket %s: it needs unsafe: [%s]", trace.Quote(at), word)
			return
		}
		n.words[word] = true
	}
	if n.Exists(at) != "" && len(n.sockets) < maxPaths {
		n.sockets[at] = true
	}
}

// limitKeys are the policy keys of limits, with what their values are divided by.
var limitKeys = map[string]string{
	"memory": "process.max_memory_mb", "tasks": "process.max_subprocesses", "cpu": "process.max_cpu_seconds", "wall": "process.max_wall_seconds",
	"output": "filesystem.max_output_bytes", "files": "filesystem.max_files", "stdout": "output.max_stdout_bytes",
}

func (n *Needs) limit(e *trace.Event) {
	if key := limitKeys[e.Limit]; key != "" && e.LimitHits > 0 {
		n.limits[key] = max(n.limits[key], 2*min(e.LimitValue, 1<<60))
	}
}

// Left returns what the needs leave out, and why.
func (n *Needs) Left() []string {
	var out []string
	for s := range n.left {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}
