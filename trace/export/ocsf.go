package export

import (
	"math"
	"net/netip"
	"strconv"
	"strings"

	"github.com/agentguard/agentguard/trace"
)

const ocsfVersion = "1.2.0"

// Classes and activities of OCSF 1.2.0.
const (
	classBase    = 0
	classFile    = 1001
	classKernel  = 1003
	classModule  = 1005
	classProcess = 1007
	classNetwork = 4001
	classDNS     = 4003

	activityOther = 99
)

// ocsfKinds gives each kind of record its class and activity. What is not here
// is a base event.
var ocsfKinds = map[trace.Kind]struct{ class, activity int }{
	trace.KindExec:      {classProcess, 1}, // Launch
	trace.KindExecFail:  {classProcess, 1},
	trace.KindFork:      {classProcess, 1},
	trace.KindExit:      {classProcess, 2}, // Terminate
	trace.KindSignal:    {classProcess, activityOther},
	trace.KindOpen:      {classFile, 14}, // Open
	trace.KindInherit:   {classFile, 14},
	trace.KindReceive:   {classFile, 14},
	trace.KindMmapWrite: {classFile, 3}, // Update
	trace.KindCode:      {classFile, 2}, // Read
	trace.KindCreate:    {classFile, 1}, // Create
	trace.KindMkdir:     {classFile, 1},
	trace.KindLink:      {classFile, 1},
	trace.KindTruncate:  {classFile, 3},
	trace.KindUnlink:    {classFile, 4}, // Delete
	trace.KindRename:    {classFile, 5}, // Rename
	trace.KindSetxattr:  {classFile, 6}, // Set Attributes
	trace.KindChmod:     {classFile, 7}, // Set Security
	trace.KindChown:     {classFile, 7},
	trace.KindMmapExec:  {classModule, 1},  // Load
	trace.KindDeny:      {classKernel, 4},  // Invoke
	trace.KindSocket:    {classKernel, 4},  // a socket has no peer yet
	trace.KindConnect:   {classNetwork, 1}, // Open
	trace.KindSend:      {classNetwork, 6}, // Traffic
	trace.KindBind:      {classNetwork, activityOther},
	trace.KindListen:    {classNetwork, activityOther},
	trace.KindDNS:       {classDNS, 1}, // Query
}

// classOf returns the class and activity of a record that has what the class
// requires; a base event has room for the others.
func classOf(e *trace.Event) (class, activity int) {
	k, ok := ocsfKinds[e.Kind]
	switch {
	case !ok || e.Proc.Pid == 0 && k.class < classNetwork, isThread(e):
		return classBase, activityOther
	case k.class == classNetwork && !e.Addr.IsValid() && len(e.Path) > 0:
		return classFile, 14 // a unix socket is a file
	case k.class == classNetwork && !e.Addr.IsValid(),
		k.class == classDNS && !isHostname(text(e.Name)),
		(k.class == classFile || k.class == classModule) && len(e.Path) == 0,
		k.class == classKernel && e.Syscall == "":
		return classBase, activityOther
	case e.Kind == trace.KindConnect && e.End != "":
		return k.class, endActivity(e.End)
	}
	return k.class, k.activity
}

// endActivity is the activity for how a connection ended.
func endActivity(end string) int {
	switch end {
	case "reset":
		return 3 // Reset
	case "failed":
		return 4 // Fail
	case "refused":
		return 5 // Refuse
	}
	return 2 // Close
}

// isThread reports whether a fork made no process.
func isThread(e *trace.Event) bool {
	return e.Kind == trace.KindFork && (e.Child.Pid == e.Proc.Pid || e.Child.Pid == 0)
}

// ocsf makes one event of the Open Cybersecurity Schema Framework. What it has
// no attribute for is under "unmapped".
func (x *exporter) ocsf(e *trace.Event) doc {
	class, activity := classOf(e)
	d := doc{
		"class_uid": class, "category_uid": class / 1000, "activity_id": activity, "type_uid": class*100 + activity,
		"time": e.Wall / 1e6, "severity_id": severity(e), "metadata": x.metadata(e, class),
	}
	d.put("message", trace.Describe(e))
	d.put("count", e.Times())
	d.put("raw_data", x.original)
	if class != classBase {
		d.put("device", x.device())
		if e.Proc.Pid != 0 {
			d.put("actor.process", x.process(e, &e.Proc))
			d.put("actor.user.uid", uid(e))
		}
		d["action_id"], d["disposition_id"] = 1, 1 // Allowed
		if e.Denied() {
			d["action_id"], d["disposition_id"] = 2, 2 // Denied, Blocked
		}
	}
	ocsfStatus(d, e)
	x.object(d, e, class)
	d.put("unmapped", x.rest(e))
	return d
}

// severity is informational, but for what an operator should look at.
func severity(e *trace.Event) int {
	switch {
	case e.Denied(), e.Kind == trace.KindLoss, e.Kind == trace.KindLimit:
		return 3 // Medium
	}
	return 1
}

func ocsfStatus(d doc, e *trace.Event) {
	switch {
	case failed(e):
		d["status_id"] = 2 // Failure
		if e.Errno != 0 {
			d.put("status_code", trace.ErrnoName(e.Errno))
		}
	case unsettled(e):
		d["status_id"] = 0 // Unknown
	case e.Proc.Pid != 0:
		d["status_id"] = 1 // Success
	}
	if e.Denied() {
		d.put("status_detail", trace.Sentence(e))
	}
}

func (x *exporter) metadata(e *trace.Event, class int) doc {
	m := doc{"version": ocsfVersion, "sequence": e.Seq}
	m.put("uid", x.start.Run+"/"+strconv.FormatUint(e.Seq, 10))
	m.put("correlation_uid", x.start.Run)
	m.put("log_name", "trace.jsonl")
	m.put("log_provider", "agentguard")
	m.put("event_code", string(e.Kind))
	m.put("product.name", "agentguard")
	m.put("product.vendor_name", "agentguard")
	m.put("product.version", x.start.Tool)
	if class != classBase {
		m["profiles"] = []string{"host", "security_control"}
	}
	return m
}

// device is the host. The record knows it by its boot.
func (x *exporter) device() doc {
	d := doc{"type_id": 0} // Unknown
	d.put("uid", x.start.BootID)
	if x.start.BootID == "" {
		d.put("name", "unknown")
	}
	d.put("os", doc{"name": "Linux", "type_id": 200})
	d.put("os.build", x.start.Kernel)
	return d
}

func uid(e *trace.Event) string { return strconv.FormatUint(uint64(e.Proc.UID), 10) }

// process describes a process by what is known of it.
func (x *exporter) process(e *trace.Event, p *trace.Proc) doc {
	d := doc{"pid": p.Pid, "uid": p.ID()}
	if p.Start != 0 {
		d["created_time"] = began(e, p.Start).UnixMilli()
	}
	if p.Tid != p.Pid {
		d.put("tid", uint64(p.Tid))
	}
	i := x.images[p.ID()]
	d.put("name", base(i.path))
	d.put("cmd_line", i.command)
	if i.path != "" {
		d.put("file", fileOf(i.path, "", 1))
	}
	if p.PStart != 0 {
		parent := trace.Proc{Boot: p.Boot, Pid: p.PPid, Start: p.PStart}
		d.put("parent_process", doc{"pid": parent.Pid, "uid": parent.ID()})
	}
	return d
}

// fileOf describes a file; typ is OCSF's file type, 0 unknown.
func fileOf(p, sha256 string, typ int) doc {
	d := doc{"type_id": typ}
	d.put("path", p)
	d.put("name", base(p))
	if sha256 != "" {
		d["hashes"] = []doc{{"algorithm_id": 3, "algorithm": "SHA-256", "value": sha256}}
	}
	return d
}

// object adds what the class is about.
func (x *exporter) object(d doc, e *trace.Event, class int) {
	p := text(e.Path)
	switch class {
	case classProcess:
		x.launched(d, e, p)
	case classFile:
		typ := 0
		switch {
		case e.Family == "unix":
			typ = 5
		case e.Kind == trace.KindMkdir:
			typ = 2
		}
		d.put("file", fileOf(p, e.SHA256, typ))
		if e.Ino != 0 {
			d.put("file.uid", strconv.FormatUint(e.Ino, 10))
		}
		if len(e.To) > 0 && e.Errno == 0 {
			d.put("file_result", fileOf(text(e.To), "", typ))
		}
	case classModule:
		d.put("module", doc{"load_type_id": 4, "file": fileOf(p, e.SHA256, 1)}) // Mapped
	case classKernel:
		d.put("kernel", doc{"name": e.Syscall, "type_id": 2, "system_call": e.Syscall})
	case classNetwork, classDNS:
		x.endpoints(d, e)
	}
}

// launched describes the process that a process event is about.
func (x *exporter) launched(d doc, e *trace.Event, p string) {
	switch e.Kind {
	case trace.KindFork:
		child := e.Child
		child.PPid, child.PStart = e.Proc.Pid, e.Proc.Start
		d.put("process", x.process(e, &child))
		return
	case trace.KindSignal:
		if e.Target.Pid != 0 {
			d.put("process", x.process(e, &e.Target))
			return
		}
	}
	process := x.process(e, &e.Proc)
	switch e.Kind {
	case trace.KindExec:
		process.put("file", fileOf(p, e.SHA256, 1))
	case trace.KindExecFail: // what would have run
		process.put("file", fileOf(p, "", 0))
	case trace.KindExit:
		if e.ExitCode != trace.ExitUnknown {
			d["exit_code"] = e.ExitCode
		}
		process["terminated_time"] = e.Wall / 1e6
	}
	d.put("process", process)
}

func (x *exporter) endpoints(d doc, e *trace.Event) {
	inside := doc{"instance_uid": x.start.Run} // the run's own network namespace
	if x.start.Run == "" {
		inside["instance_uid"] = "unknown"
	}
	d.put("src_endpoint", inside)
	if e.Kind == trace.KindDNS {
		d.put("query", doc{"hostname": text(e.Name)})
	}
	if e.Addr.IsValid() {
		a := e.Addr.Unmap().WithZone("")
		d.put("dst_endpoint", doc{"ip": a.String(), "port": e.Port})
		if name := text(e.Name); isHostname(name) {
			d.put("dst_endpoint.hostname", name)
		}
		d.put("connection_info", connection(e, a))
	}
	if e.Kind == trace.KindSend || e.End != "" {
		d.put("traffic", doc{"bytes_out": long(e.Bytes), "bytes_in": long(e.Received), "bytes": long(long(e.Bytes) + long(e.Received))})
	}
	d.put("duration", min(e.Duration/1e6, math.MaxInt32)) // ms
}

// long keeps a number in the range of both schemas' longs.
func long(n uint64) uint64 { return min(n, math.MaxInt64) }

// protocols are IANA's numbers.
var protocols = map[string]int{"icmp": 1, "tcp": 6, "udp": 17, "icmp6": 58, "sctp": 132, "mptcp": 262}

func connection(e *trace.Event, a netip.Addr) doc {
	c := doc{"direction_id": 2, "protocol_ver_id": 6} // Outbound
	if e.Kind == trace.KindBind || e.Kind == trace.KindListen {
		c["direction_id"] = 1 // Inbound
	}
	if a.Is4() {
		c["protocol_ver_id"] = 4
	}
	c.put("protocol_name", e.Proto)
	if n, ok := protocols[e.Proto]; ok {
		c["protocol_num"] = n
	}
	return c
}

// isHostname reports whether a name can stand where a host name must
// (RFC 1123, with the underscore that service names have).
func isHostname(s string) bool {
	s = strings.TrimSuffix(s, ".")
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			alnum := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
			if !alnum && c != '-' && c != '_' {
				return false
			}
		}
	}
	return true
}
