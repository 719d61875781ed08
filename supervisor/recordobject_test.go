package supervisor

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/trace"
)

// about is what the kernel tells of a call, and the call's own event after it.
func about(call bpf.Event, o bpf.ObjectInfo) []bpf.Event {
	obj := bpf.Event{Type: bpf.Object, Phase: bpf.Command, TGID: call.TGID, TID: call.TID, NR: call.NR, Time: 41, Object: o}
	call.Call.Object = 41
	return []bpf.Event{obj, call}
}

func changed(nr int, ret int64, path, path2 string) bpf.Event {
	return bpf.Event{Type: bpf.Call, Phase: bpf.Command, TGID: 1, TID: 1, NR: nr, Ret: ret, Call: bpf.CallInfo{Path: []byte(path), Path2: []byte(path2)}}
}

// The kernel's names stand in the record, and beside them what was given.
func TestRecordNamesOfTheKernel(t *testing.T) {
	stale := about(changed(unix.SYS_UNLINKAT, 0, "/srv/ws/x", ""), bpf.ObjectInfo{Path: rooted("/srv/ws/other")})
	stale[1].Call.Object = 40
	for _, c := range []struct {
		name                   string
		events                 []bpf.Event
		path, given, to, toWas string
		source                 trace.PathSource
		ino                    uint64
	}{
		{"through a link", about(changed(unix.SYS_UNLINKAT, 0, "/srv/ws/l/x", ""), bpf.ObjectInfo{Path: rooted("/srv/ws/d/x"), Dev: unix.Mkdev(8, 1), Inode: 7}), "/srv/ws/d/x", "/srv/ws/l/x", "", "", trace.PathKernel, 7},
		{"as given", about(changed(unix.SYS_MKDIRAT, 0, "/srv/ws/x", ""), bpf.ObjectInfo{Path: rooted("/srv/ws/x")}), "/srv/ws/x", "", "", "", trace.PathKernel, 0},
		{"rename", about(changed(unix.SYS_RENAMEAT2, 0, "a", "b"), bpf.ObjectInfo{Path: rooted("/w/a"), Path2: rooted("/w/b"), Inode: 3, Dev: 1}), "/w/a", "a", "/w/b", "b", trace.PathKernel, 3},
		{"symlink", about(changed(unix.SYS_SYMLINKAT, 0, "raced", "b"), bpf.ObjectInfo{Path2: rooted("/w/b"), Text: []byte("text")}), "text", "", "/w/b", "b", trace.PathKernel, 0},
		{"a failure", about(changed(unix.SYS_MKDIRAT, -int64(unix.EEXIST), "l/d", ""), bpf.ObjectInfo{Path: rooted("/w/d"), Inode: 9, Dev: 1}), "/w/d", "l/d", "", "", trace.PathKernel, 9},
		{"of another call", stale, "/srv/ws/x", "", "", "", trace.PathUser, 0},
		{"of another thread", []bpf.Event{about(changed(unix.SYS_UNLINKAT, 0, "/x", ""), bpf.ObjectInfo{Path: rooted("/y")})[1]}, "/x", "", "", "", trace.PathUser, 0},
		{"outside the root", about(changed(unix.SYS_UNLINKAT, 0, "/x", ""), bpf.ObjectInfo{Path: bpf.Path{Text: []byte("gone"), Full: 5}}), "/x", "", "", "", trace.PathUser, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, r := record(t, recordPlan(), c.events...)
			e := only(t, list)
			if string(e.Path) != c.path || string(e.PathGiven) != c.given || string(e.To) != c.to || string(e.ToGiven) != c.toWas || e.PathSource != c.source || e.Ino != c.ino {
				t.Errorf("%q given %q, to %q given %q, %s, inode %d", e.Path, e.PathGiven, e.To, e.ToGiven, e.PathSource, e.Ino)
			}
			if r.denied.total != 0 {
				t.Errorf("%d denials", r.denied.total)
			}
		})
	}
}

// Of an attribute the kernel tells the name and whose it is, and no path.
func TestRecordAttribute(t *testing.T) {
	list, _ := record(t, recordPlan(), about(changed(unix.SYS_SETXATTR, 0, "/srv/ws/x", "user.raced"), bpf.ObjectInfo{Text: []byte("user.a"), Dev: unix.Mkdev(8, 1), Inode: 7})...)
	if e := only(t, list); string(e.Name) != "user.a" || string(e.Path) != "/srv/ws/x" || e.PathSource != trace.PathUser || e.Ino != 7 || e.DevMajor != 8 {
		t.Errorf("%q of %q (%s), inode %d", e.Name, e.Path, e.PathSource, e.Ino)
	}
}

// What Landlock says itself is certain, by whatever errno the call ended, and
// tells the run's own domain from one that the command has made.
func TestRecordRefusalsOfLandlock(t *testing.T) {
	by := func(e bpf.Event, by bpf.RefusedBy, access uint32) bpf.Event {
		e.Call.Refused = bpf.Refusal{By: by, Access: access}
		return e
	}
	own := by(onPath(unix.SYS_OPENAT, unix.EACCES, "/srv/ws/x", 0), bpf.RefusedFS, 4)
	own.Call.Refused.Own = true
	read := by(onPath(unix.SYS_OPENAT, unix.EACCES, "link", 0), bpf.RefusedFS, 4)
	create := by(onPath(unix.SYS_OPENAT, unix.EACCES, "/tmp/link/new", unix.O_CREAT|unix.O_WRONLY), bpf.RefusedFS, 1<<8)
	for _, c := range []struct {
		name                   string
		events                 []bpf.Event
		path                   string
		layer                  trace.Layer
		blockers, rule, remedy string
	}{
		{"a file", about(read, bpf.ObjectInfo{Path: rooted("/home/u/data"), Inode: 4, Dev: 1, Refused: true}), "/home/u/data", trace.LayerLandlock, "fs.read_file", clauseReadOnly, "--ro /home/u/data"},
		{"a name in a directory", about(create, bpf.ObjectInfo{Path: rooted("/home/u/d"), Refused: true}), "/home/u/d/new", trace.LayerLandlock, "fs.make_reg", clauseReadOnly, "--rw /home/u/d"},
		{"a rename between directories", []bpf.Event{by(changed(unix.SYS_RENAMEAT2, -int64(unix.EXDEV), "/srv/ws/a", "/srv/ws/b"), bpf.RefusedFS, 1<<13)}, "/srv/ws/a", trace.LayerLandlock, "fs.refer", "filesystem.workspace", "--rw /srv/ws"},
		{"a signal", []bpf.Event{by(denied(unix.SYS_KILL, unix.EPERM), bpf.RefusedSignal, 0)}, "", trace.LayerLandlock, "scope.signal", "", ""},
		{"a sandbox of the command's own", []bpf.Event{own}, "/srv/ws/x", trace.LayerNone, "fs.read_file", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, r := record(t, recordPlan(), c.events...)
			e := only(t, list)
			if string(e.Path) != c.path || e.Layer != c.layer || e.Certainty != trace.Certain || e.Blockers != c.blockers || e.Rule != c.rule || e.Remedy != c.remedy || r.denied.total != 1 {
				t.Errorf("%q by %s (%s) %q, %q, remedy %q", e.Path, e.Layer, e.Certainty, e.Blockers, e.Rule, e.Remedy)
			}
		})
	}
}

func TestRecordChown(t *testing.T) {
	args := func(nr int, a ...uint64) bpf.Event {
		e := changed(nr, 0, "/srv/ws/x", "")
		copy(e.Call.Args[:], a)
		return e
	}
	none := uint64(1<<64 - 1)
	for _, c := range []struct {
		event    bpf.Event
		uid, gid int64
	}{
		{args(unix.SYS_FCHOWNAT, 0, 0, 5, 0), 5, 0},
		{args(unix.SYS_FCHOWNAT, 0, 0, none, 1<<32-2), -1, 1<<32 - 2},
		{args(unix.SYS_FCHOWN, 3, 0, 1<<32-1), 0, -1},
	} {
		list, _ := record(t, recordPlan(), c.event)
		if e := only(t, list); e.Kind != trace.KindChown || e.NewUID != c.uid || e.NewGID != c.gid {
			t.Errorf("%s: %d %d, want %d %d", e.Kind, e.NewUID, e.NewGID, c.uid, c.gid)
		}
	}
}

func TestRecordReceive(t *testing.T) {
	list, _ := record(t, recordPlan(), bpf.Event{
		Type: bpf.Receive, Phase: bpf.Command, TGID: 1, TID: 1, NR: unix.SYS_RECVMSG, Ret: 6,
		File: bpf.FileInfo{How: bpf.Opened, Path: rooted("/srv/ws/x"), FMode: bpf.FModeRead, Inode: 3, Dev: unix.Mkdev(8, 1), Slot: 255},
	})
	e := only(t, list)
	if e.Kind != trace.KindReceive || e.FD != 6 || string(e.Path) != "/srv/ws/x" || e.PathSource != trace.PathFDExit || e.Access != "r" || e.Syscall != "recvmsg" || e.Ino != 3 {
		t.Errorf("%+v", e)
	}
}
