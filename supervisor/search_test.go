package supervisor

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/trace"
)

func tried(pid uint32, errno unix.Errno, file string) bpf.Event {
	return bpf.Event{
		Type: bpf.ExecFail, Phase: bpf.Command, TGID: pid, TID: pid, NR: unix.SYS_EXECVE, Ret: -int64(errno),
		Call: bpf.CallInfo{Path: []byte(file)},
	}
}

// An execvp that finds its program after places outside the view was refused
// nothing; one that finds none was. The record has each try either way.
func TestSearchOfPath(t *testing.T) {
	const outside = "/home/u/bin/node"
	exit := bpf.Event{Type: bpf.Exit, Phase: bpf.Command, TGID: 7, TID: 7}
	opened := bpf.Event{Type: bpf.File, Phase: bpf.Command, TGID: 7, TID: 7, NR: unix.SYS_OPENAT, File: bpf.FileInfo{How: bpf.Opened, Slot: 255}}
	other := denied(unix.SYS_MOUNT, unix.EPERM)
	other.TGID, other.TID = 7, 7
	repeat := bpf.Event{Type: bpf.Repeat, Phase: bpf.Command, TGID: 7, TID: 7, File: bpf.FileInfo{How: bpf.Opened, Count: 1}}
	for _, c := range []struct {
		name   string
		events []bpf.Event
		fails  int
		denied uint64
	}{
		{"found", []bpf.Event{tried(7, unix.ENOENT, outside), tried(7, unix.ENOENT, "/opt/x/node"), execEvent(7, "/usr/bin/node", "node\x00", 5), exit}, 2, 0},
		{"found, with files between", []bpf.Event{tried(7, unix.ENOENT, outside), opened, repeat, execEvent(7, "/usr/bin/node", "node\x00", 5), exit}, 1, 0},
		{"found by another process", []bpf.Event{tried(7, unix.ENOENT, outside), execEvent(8, "/usr/bin/node", "node\x00", 5), exit}, 1, 1},
		{"nowhere", []bpf.Event{tried(7, unix.ENOENT, outside), tried(7, unix.ENOENT, "/usr/bin/node"), exit}, 2, 1},
		{"nowhere, and the process goes on", []bpf.Event{tried(7, unix.ENOENT, outside), other, execEvent(7, "/usr/bin/node", "node\x00", 5)}, 1, 1},
		{"another program", []bpf.Event{tried(7, unix.ENOENT, outside), execEvent(7, "/usr/bin/sh", "sh\x00", 3), exit}, 1, 1},
		{"another search", []bpf.Event{tried(7, unix.ENOENT, outside), tried(7, unix.ENOENT, "/opt/x/sh"), execEvent(7, "/usr/bin/sh", "sh\x00", 3), exit}, 2, 1},
		{"refused, not missing", []bpf.Event{tried(7, unix.EACCES, outside), execEvent(7, "/usr/bin/node", "node\x00", 5), exit}, 1, 1},
		{"credentials", []bpf.Event{tried(7, unix.ENOENT, "/home/u/.ssh/node"), execEvent(7, "/usr/bin/node", "node\x00", 5), exit}, 1, 1},
		{"the run ends", []bpf.Event{tried(7, unix.ENOENT, outside)}, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, r := record(t, recordPlan(), c.events...)
			fails, refused := 0, uint64(0)
			for i := range list {
				e := &list[i]
				if e.Kind != trace.KindExecFail {
					continue
				}
				fails++
				if len(e.Path) == 0 || e.Errno == 0 {
					t.Errorf("%+v", e)
				}
				if e.Denied() {
					refused++
				} else if e.Layer != "" || e.Rule != "" || e.Remedy != "" || e.Certainty != "" {
					t.Errorf("no denial, and yet %+v", e)
				}
			}
			total := r.denied.total
			if c.name == "nowhere, and the process goes on" {
				total-- // the mount
			}
			if fails != c.fails || refused != c.denied || total != c.denied {
				t.Errorf("%d tries, %d of them denials, %d in all; want %d and %d", fails, refused, r.denied.total, c.fails, c.denied)
			}
			if len(r.searches.held) != 0 || r.searches.tries != 0 {
				t.Errorf("still held: %+v", r.searches)
			}
		})
	}
}

// What is held is bounded: a process that tries without end loses nothing.
func TestSearchBounded(t *testing.T) {
	var events []bpf.Event
	for range maxTries + 10 {
		events = append(events, tried(7, unix.ENOENT, "/home/u/bin/x"))
	}
	events = append(events, execEvent(7, "/usr/bin/x", "x\x00", 2))
	list, r := record(t, recordPlan(), events...)
	if len(list) != len(events) || r.denied.total != 10 {
		t.Errorf("%d records and %d denials", len(list), r.denied.total)
	}
}
