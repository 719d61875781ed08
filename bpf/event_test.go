package bpf

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// The layouts that decode reads are those of the C structures, by the objects' own type information.
func TestLayouts(t *testing.T) {
	egress, err := loadEgress()
	if err != nil {
		t.Fatal(err)
	}
	sensor, err := loadSensor()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := sensor.Maps["runs"].ValueSize, uint32(unsafe.Sizeof(runValue{})); got != want {
		t.Errorf("struct run has %d bytes, runValue %d", got, want)
	}
	if got := sensor.Maps["counts"].InnerMap.ValueSize; got != counterBytes {
		t.Errorf("struct counters has %d bytes, counterValue %d", got, counterBytes)
	}
	if got := sensor.Maps["rings"].MaxEntries; got != maxSlots {
		t.Errorf("%d slots, maxSlots is %d", got, maxSlots)
	}
	for _, test := range []struct {
		spec *ebpf.CollectionSpec
		name string
		kind Type
		want map[string]uint32 // offsets from the header on
	}{
		{sensor, "ev_exec", Exec, map[string]uint32{
			"inode": 0, "dev": 8, "gid": 12, "mode": 16, "ns_pid": 20, "argc": 24, "args_len": 28, "env_len": 32, "parent_tgid": 36, "parent_start": 40,
			"path_full": 48, "file_len": 52, "interp_len": 54, "path_len": 56, "chunk_len": 58, "state": 60, "ctime": 72, "data": execSize,
		}},
		{sensor, "ev_args", ExecArgs, map[string]uint32{"offset": 0, "len": 4, "data": 8}},
		{sensor, "ev_call", Deny, map[string]uint32{
			"args": 0, "inode": 48, "resolve": 56, "dev": 64, "dir_full": 68, "dir2_full": 72, "path_len": 76, "path2_len": 78, "addr_len": 80,
			"dir_len": 82, "dir2_len": 84, "dir_state": 86, "dir2_state": 87, "data": callSize,
		}},
		{sensor, "file_info", 0, map[string]uint32{"inode": 0, "dev": 8, "fmode": 12, "mode": 16, "state": 18, "how": 19, "path_full": 20, "ctime": 24}},
		{sensor, "ev_file", File, map[string]uint32{"file": 0, "args": 32, "resolve": 80, "path_len": 88, "given_len": 90, "slot": 92, "source": 93, "data": fileSize}},
		{sensor, "header", 0, map[string]uint32{"type": 0, "class": 1, "phase": 2, "flags": 3, "cpu": 4, "run": 8, "seq": 16, "time": 24, "start": 32, "tgid": 40, "tid": 44, "ret": 48, "nr": 56, "uid": 60}},
		{egress, "run", 0, map[string]uint32{"slot": 0, "flags": 4, "watermark": 8, "brake": 12, "room": 16, "init_tgid": 28, "started": 32}},
	} {
		checkLayout(t, test.spec, test.name, test.kind, test.want)
	}
}

func checkLayout(t *testing.T, spec *ebpf.CollectionSpec, name string, kind Type, want map[string]uint32) {
	t.Helper()
	var s *btf.Struct
	if err := spec.Types.TypeByName(name, &s); err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	base := uint32(0)
	if kind != 0 {
		base = headerSize
		if want["data"] != uint32(bodies[kind].size) {
			t.Errorf("%s: body of %d bytes, data at %d", name, bodies[kind].size, want["data"])
		}
	}
	got := map[string]uint32{}
	for _, m := range s.Members {
		got[m.Name] = m.Offset.Bytes() - base
	}
	for field, offset := range want {
		if have, ok := got[field]; !ok || have != offset {
			t.Errorf("%s.%s is at %d (%v), read at %d", name, field, have, ok, offset)
		}
	}
}

// The other architecture's objects have the same programs.
func TestObjectsOfBothArchitectures(t *testing.T) {
	for _, name := range []string{"egress", "sensor", "unixsock"} {
		var programs [2][]string
		for i, arch := range []string{"x86", "arm64"} {
			spec, err := ebpf.LoadCollectionSpec(fmt.Sprintf("%s_%s_bpfel.o", name, arch))
			if err != nil {
				t.Fatal(err)
			}
			for _, known := range append(append(cgroupNames[:], tracingNames[:]...), exitByPerf) {
				if spec.Programs[known] != nil {
					programs[i] = append(programs[i], known)
				}
			}
			if len(programs[i]) != len(spec.Programs) {
				t.Errorf("%s for %s has programs that nobody attaches", name, arch)
			}
		}
		if fmt.Sprint(programs[0]) != fmt.Sprint(programs[1]) {
			t.Errorf("%s: %v, %v", name, programs[0], programs[1])
		}
	}
}

func record(kind Type, body ...[]byte) []byte {
	b := make([]byte, headerSize)
	b[0], b[1], b[2], b[3] = byte(kind), byte(Control), byte(Command), byte(Truncated)
	order.PutUint16(b[4:], 3)
	order.PutUint64(b[8:], 77)
	order.PutUint64(b[16:], 5)
	order.PutUint64(b[24:], 1e9)
	order.PutUint64(b[32:], 9e8)
	order.PutUint32(b[40:], 100)
	order.PutUint32(b[44:], 101)
	order.PutUint64(b[48:], ^uint64(12))
	order.PutUint32(b[56:], 257)
	order.PutUint32(b[60:], 1000)
	return append(b, bytes.Join(body, nil)...)
}

func TestDecode(t *testing.T) {
	call := make([]byte, callSize)
	order.PutUint64(call[8:], 4711)
	order.PutUint16(call[76:], 5)
	order.PutUint16(call[78:], 3)
	order.PutUint16(call[80:], 2)
	order.PutUint16(call[82:], 12)
	order.PutUint32(call[68:], 12)
	call[86] = 1
	sock := make([]byte, 32)
	sock[0], sock[1] = byte(HookConnect), 1
	order.PutUint16(sock[2:], unix.AF_INET)
	order.PutUint16(sock[8:], 443)
	copy(sock[16:], []byte{192, 0, 2, 1})
	exec := make([]byte, execSize)
	order.PutUint32(exec[8:], 8<<20|1)
	order.PutUint16(exec[52:], 8)
	order.PutUint16(exec[58:], 4)
	for name, test := range map[string]struct {
		record []byte
		check  func(ev *Event) bool
	}{
		"header": {record(Deny, call), func(ev *Event) bool {
			return ev.Class == Control && ev.Phase == Command && ev.Flags == Truncated && ev.CPU == 3 && ev.Run == 77 &&
				ev.Seq == 5 && ev.Time == 1e9 && ev.Start == 9e8 && ev.TGID == 100 && ev.TID == 101 && ev.Ret == -13 &&
				ev.NR == 257 && ev.UID == 1000
		}},
		"call": {record(Deny, call, []byte("/etc\x00/x\x00\x02\x00dir\x00home\x00ws\x00")), func(ev *Event) bool {
			return string(ev.Call.Dir.Text) == "/ws/home/dir" && ev.Call.Dir.Rooted && ev.Call.Args[1] == 4711 && string(ev.Call.Path) == "/etc" && string(ev.Call.Path2) == "/x" && string(ev.Call.Addr) == "\x02\x00"
		}},
		"call cut": {record(Deny, call, []byte("/e")), func(ev *Event) bool { return string(ev.Call.Path) == "/e" && ev.Call.Path2 == nil }},
		"socket": {record(Socket, sock), func(ev *Event) bool {
			return ev.Socket.Addr == netip.MustParseAddr("192.0.2.1") && ev.Socket.Port == 443 && ev.Socket.Allowed
		}},
		"exec": {record(Exec, exec, []byte("/bin/sh\x00sh\x00x")), func(ev *Event) bool {
			return string(ev.Exec.File) == "/bin/sh" && string(ev.Exec.Args) == "sh\x00x" && ev.Exec.Dev == unix.Mkdev(8, 1)
		}},
	} {
		var ev Event
		if err := ev.decode(test.record); err != nil || !test.check(&ev) {
			t.Errorf("%s: %v %+v", name, err, ev)
		}
	}
}

// Names lead upwards in a record; a path that is cut lacks its beginning.
func TestPaths(t *testing.T) {
	for _, test := range []struct {
		names string
		full  uint32
		state byte
		want  string
	}{
		{"", 0, 1, "/"},
		{"", 0, 0, ""},
		{"c\x00bb\x00a\x00", 7, 1, "/a/bb/c"},
		{"c\x00bb\x00a\x00", 9000, 1, "a/bb/c"},
		{"memfd:x\x00", 8, 0, "memfd:x"},
		{"b\x00a\x00", 4, 2, "a/b"},
		{"\n/\x00", 3, 1, "/\n/"},
		{"no end", 6, 1, "/no en"},
	} {
		var ev Event
		ev.paths = append(ev.paths, "before"...)
		p := ev.path([]byte(test.names), test.full, test.state)
		if string(p.Text) != test.want || p.Rooted != (test.state&1 != 0) || p.Deleted != (test.state&2 != 0) {
			t.Errorf("%q %d: %+v %q, want %q", test.names, test.full, p, p.Text, test.want)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, b := range map[string][]byte{
		"nothing":       nil,
		"half a header": make([]byte, headerSize-1),
		"no type":       make([]byte, headerSize+100),
		"unknown type":  record(200, make([]byte, 100)),
		"cut body":      record(Exit, make([]byte, 47)),
	} {
		var ev Event
		if err := ev.decode(b); err == nil {
			t.Errorf("%s: decoded", name)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for kind, body := range bodies {
		f.Add(record(Type(kind), make([]byte, body.size), []byte("/some/path\x00more\x00")))
		f.Add(record(Type(kind), bytes.Repeat([]byte{0xff}, body.size+7)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var ev Event
		if err := ev.decode(b); err != nil {
			return
		}
		again := bytes.Clone(b)
		var other Event
		if err := other.decode(again); err != nil || describe(&ev) != describe(&other) {
			t.Errorf("decoded differently: %v", err)
		}
		// Kernel paths are put together anew, from what the record holds.
		for _, s := range [][]byte{ev.Exec.Image.Text, ev.Call.Dir.Text, ev.Call.Dir2.Text, ev.File.Path.Text} {
			if len(s) > len(b)+1 {
				t.Errorf("path of %d in a record of %d", len(s), len(b))
			}
		}
		// What is handed out lies within the record and cannot grow into what follows.
		for _, s := range [][]byte{ev.Exec.File, ev.Exec.Interp, ev.Exec.Args, ev.Exec.Env, ev.File.Given, ev.Call.Path, ev.Call.Path2, ev.Call.Addr, ev.Socket.Text} {
			if len(s) > len(b)-headerSize || cap(s) > len(s)+1 {
				t.Errorf("slice of %d (%d) in a record of %d", len(s), cap(s), len(b))
			}
		}
	})
}
