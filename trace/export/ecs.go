package export

import (
	"path"
	"strconv"
	"time"

	"github.com/agentguard/agentguard/trace"
)

const ecsVersion = "9.4.0"

// ecsKinds gives each kind of record its event.category and event.type.
var ecsKinds = map[trace.Kind]struct{ category, typ string }{
	trace.KindStart:      {"session", "start"},
	trace.KindExec:       {"process", "start"},
	trace.KindExecFail:   {"process", "start"},
	trace.KindFork:       {"process", "start"},
	trace.KindExit:       {"process", "end"},
	trace.KindOpen:       {"file", "access"},
	trace.KindCreate:     {"file", "creation"},
	trace.KindUnlink:     {"file", "deletion"},
	trace.KindRename:     {"file", "change"},
	trace.KindLink:       {"file", "creation"},
	trace.KindMkdir:      {"file", "creation"},
	trace.KindTruncate:   {"file", "change"},
	trace.KindChmod:      {"file", "change"},
	trace.KindChown:      {"file", "change"},
	trace.KindSetxattr:   {"file", "change"},
	trace.KindMmapExec:   {"library", "start"},
	trace.KindMmapWrite:  {"file", "access"},
	trace.KindCode:       {"file", "access"},
	trace.KindInherit:    {"file", "access"},
	trace.KindReceive:    {"file", "access"},
	trace.KindConnect:    {"network", "connection"},
	trace.KindBind:       {"network", "info"},
	trace.KindListen:     {"network", "info"},
	trace.KindSend:       {"network", "connection"},
	trace.KindDNS:        {"network", "protocol"},
	trace.KindCall:       {"web", "access"},
	trace.KindSocket:     {"network", "info"},
	trace.KindSignal:     {"process", "change"},
	trace.KindCgroupMove: {"process", "change"},
	trace.KindLimit:      {"process", "info"},
	trace.KindDeny:       {"process", "info"},
	trace.KindLoss:       {"session", "info"},
	trace.KindCanary:     {"session", "info"},
	trace.KindOutput:     {"session", "info"},
	trace.KindSummary:    {"session", "end"},
}

// ecs makes one event of the Elastic Common Schema. What it has no field for is
// under "agentguard", a name that the schema leaves to others.
func (x *exporter) ecs(e *trace.Event) doc {
	d := doc{}
	d.put("@timestamp", time.Unix(0, e.Wall).UTC().Format(time.RFC3339Nano))
	d.put("ecs.version", ecsVersion)
	d.put("message", trace.Describe(e))
	d.put("event.kind", "event")
	d.put("event.module", "agentguard")
	d.put("event.dataset", "agentguard.trace")
	d.put("event.action", string(e.Kind))
	d.put("event.sequence", e.Seq)
	d.put("event.id", x.start.Run+"/"+strconv.FormatUint(e.Seq, 10))
	d.put("event.original", x.original)
	x.ecsClass(d, e)
	d.put("labels.run", x.start.Run)
	d.put("agent.type", "agentguard")
	d.put("agent.version", x.start.Tool)
	d.put("host.boot.id", x.start.BootID)
	d.put("host.os.type", "linux")
	d.put("host.os.kernel", x.start.Kernel)
	x.ecsProcess(d, e)
	ecsFile(d, e)
	ecsNetwork(d, e)
	d.put("rule.name", e.Rule)
	if e.Errno != 0 {
		d.put("error.code", trace.ErrnoName(e.Errno))
	}
	d.put("agentguard", x.rest(e))
	return d
}

func (x *exporter) ecsClass(d doc, e *trace.Event) {
	k, ok := ecsKinds[e.Kind]
	switch {
	case !ok: // of a later version
		k.category, k.typ = "session", "info"
	case isThread(e):
		k.typ = "info"
	case e.Kind == trace.KindConnect && e.End != "":
		k.typ = "end"
	}
	category, typ := []string{k.category}, []string{k.typ}
	if e.Denied() {
		category, typ = append(category, "intrusion_detection"), append(typ, "denied")
	}
	d.put("event.category", category)
	d.put("event.type", typ)
	switch {
	case failed(e):
		d.put("event.outcome", "failure")
	case unsettled(e):
		d.put("event.outcome", "unknown")
	case e.Proc.Pid != 0:
		d.put("event.outcome", "success")
	}
}

// ecsProcess describes who acted; of a fork, the new process is the one that
// starts, and who acted its parent.
func (x *exporter) ecsProcess(d doc, e *trace.Event) {
	p := e.Proc
	if p.Pid == 0 {
		return
	}
	parent := trace.Proc{Boot: p.Boot, Pid: p.PPid, Start: p.PStart}
	if e.Kind == trace.KindFork && !isThread(e) {
		p, parent = e.Child, p
	}
	d.put("process.pid", uint64(p.Pid))
	d.put("process.entity_id", p.ID())
	d.put("process.start", began(e, p.Start).Format(time.RFC3339Nano))
	if p.Tid != p.Pid {
		d.put("process.thread.id", uint64(p.Tid))
	}
	d.put("process.parent.pid", uint64(parent.Pid))
	if parent.Start != 0 {
		d.put("process.parent.entity_id", parent.ID())
		d.put("process.parent.executable", x.images[parent.ID()].path)
	}
	d.put("user.id", strconv.FormatUint(uint64(e.Proc.UID), 10))
	i := x.images[p.ID()]
	d.put("process.executable", i.path)
	d.put("process.name", text(e.Comm))
	if len(e.Comm) == 0 {
		d.put("process.name", base(i.path))
	}
	d.put("process.command_line", i.command)
	switch e.Kind {
	case trace.KindExec:
		d.put("process.args", texts(e.Argv))
		d.put("process.args_count", uint64(e.Argc))
		d.put("process.env_vars", texts(e.Env))
		d.put("process.hash.sha256", e.SHA256)
	case trace.KindExit:
		if e.ExitCode != trace.ExitUnknown {
			d.put("process.exit_code", int64(e.ExitCode))
		}
		d.put("process.end", d["@timestamp"])
	}
}

func ecsFile(d doc, e *trace.Event) {
	p := text(e.Path)
	if p == "" || e.Kind == trace.KindExec || e.Family != "" || e.Kind == trace.KindCgroupMove {
		return
	}
	d.put("file.path", p)
	d.put("file.name", base(p))
	if p[0] == '/' {
		d.put("file.directory", path.Dir(p))
	}
	if e.Ino != 0 {
		d.put("file.inode", strconv.FormatUint(e.Ino, 10))
	}
	if e.Mode != 0 {
		d.put("file.mode", "0"+strconv.FormatUint(uint64(e.Mode), 8))
	}
	d.put("file.hash.sha256", e.SHA256)
}

func ecsNetwork(d doc, e *trace.Event) {
	side := "destination"
	if e.Kind == trace.KindBind || e.Kind == trace.KindListen {
		side = "source"
	}
	if e.Addr.IsValid() {
		a := e.Addr.Unmap().WithZone("")
		d.put(side+".ip", a.String())
		d.put(side+".address", a.String())
		d.put(side+".port", uint64(e.Port))
		d.put("network.type", map[bool]string{true: "ipv4", false: "ipv6"}[a.Is4()])
	} else if e.Family != "" {
		d.put(side+".address", text(e.Path))
		d.put("network.type", e.Family)
	}
	d.put("network.transport", e.Proto)
	if e.Kind == trace.KindSend || e.Kind == trace.KindConnect {
		d.put("network.bytes", long(long(e.Bytes)+long(e.Received)))
		d.put("network.direction", "egress")
		d.put("source.bytes", long(e.Bytes))
		d.put("destination.bytes", long(e.Received))
		d.put("destination.domain", text(e.Name))
		d.put("event.duration", long(e.Duration)) // ns
	}
	if e.Kind == trace.KindDNS {
		d.put("dns.question.name", text(e.Name))
		d.put("dns.type", "query")
	}
}
