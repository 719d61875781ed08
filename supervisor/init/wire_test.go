//go:build linux

package initproc

import (
	"encoding/binary"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// cField is a member of a struct of init.c.
type cField struct{ offset, size int }

var cSizes = map[string]int{"u8": 1, "u16": 2, "s16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8}

var (
	cMembers = regexp.MustCompile(`^\s*([us]\d+) ([^;]+);`)
	cMember  = regexp.MustCompile(`^(\w+)(?:\[(\d+)\])?$`)
	cConst   = regexp.MustCompile(`(?m)^#define (\w+)\s+(\w+?)U?(?:\s|$)`)
	cEnum    = regexp.MustCompile(`enum \{ ((?:ARG|STEP|REPORT|MSG)_[^}]+) \}`)
)

func source(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("c/init.c")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// cStruct lays out a struct of init.c as the compilers of amd64 and arm64 do.
func cStruct(t *testing.T, src, name string) (map[string]cField, int) {
	t.Helper()
	_, body, ok := strings.Cut(src, "\nstruct "+name+" {\n")
	if !ok {
		t.Fatalf("init.c has no struct %s", name)
	}
	body, _, _ = strings.Cut(body, "\n};")
	fields, at, align := map[string]cField{}, 0, 1
	for line := range strings.Lines(body) {
		m := cMembers.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("struct %s: %q", name, line)
		}
		size := cSizes[m[1]]
		align = max(align, size)
		for _, decl := range strings.Split(m[2], ",") {
			d := cMember.FindStringSubmatch(strings.TrimSpace(decl))
			if d == nil || size == 0 {
				t.Fatalf("struct %s: %q", name, decl)
			}
			n := 1
			if d[2] != "" {
				n, _ = strconv.Atoi(d[2])
			}
			at = (at + size - 1) / size * size
			fields[d[1]] = cField{at, size * n}
			at += size * n
		}
	}
	return fields, (at + align - 1) / align * align
}

// Both ends of the protocol have one shape: what encode and receive take for
// the offsets of init.c's structs is what C makes of them.
func TestWireSizes(t *testing.T) {
	src := source(t)
	for name, want := range map[string]struct {
		size   int
		fields map[string]cField
	}{
		"plan": {planSize, map[string]cField{
			"magic": {0, 4}, "nsteps": {4, 4}, "nrelocs": {8, 4}, "nfds": {12, 4}, "steps": {16, 4}, "relocs": {20, 4}, "data": {24, 4}, "size": {28, 4},
		}},
		"step": {stepSize, map[string]cField{
			"nr": {0, 4}, "stage": {4, 2}, "flags": {6, 1}, "pad": {7, 1}, "kind": {8, 6}, "want": {14, 2}, "want2": {16, 2}, "pad2": {18, 2}, "save": {20, 4}, "arg": {24, 48},
		}},
		"report":  {12, map[string]cField{"kind": {0, 2}, "stage": {2, 2}, "step": {4, 4}, "err": {8, 4}}},
		"message": {messageSize, map[string]cField{"kind": {0, 4}, "value": {4, 4}, "detail": {8, 16}}},
	} {
		fields, size := cStruct(t, src, name)
		if size != want.size || len(fields) != len(want.fields) {
			t.Errorf("struct %s has %d bytes and %d members, Go says %d and %d", name, size, len(fields), want.size, len(want.fields))
		}
		for member, f := range want.fields {
			if fields[member] != f {
				t.Errorf("struct %s: %s at %+v, Go says %+v", name, member, fields[member], f)
			}
		}
	}
}

func TestWireConstants(t *testing.T) {
	src := source(t)
	got := map[string]uint64{}
	for _, m := range cConst.FindAllStringSubmatch(src, -1) {
		if n, err := strconv.ParseUint(m[2], 0, 64); err == nil {
			got[m[1]] = n
		}
	}
	for _, m := range cEnum.FindAllStringSubmatch(src, -1) {
		for i, word := range strings.Split(m[1], ",") {
			name, value, given := strings.Cut(strings.TrimSpace(word), " = ")
			got[name] = uint64(i)
			if given {
				got[name], _ = strconv.ParseUint(value, 0, 64)
			}
		}
	}
	for name, want := range map[string]uint64{
		"PLAN_MAGIC": planMagic, "NO_SAVE": uint64(noSave),
		"ARG_VALUE": uint64(argValue), "ARG_DATA": uint64(argData), "ARG_FD": uint64(argFD), "ARG_SAVED": uint64(argSaved),
		"STEP_EXEC": stepExec, "STEP_IGNORE": stepIgnore, "STEP_READY": stepReady,
		"REPORT_FAIL": reportFail, "REPORT_READY": reportReady,
		"CHILDREN_FD": childrenFD, "MSG_CHILD": msgChild, "MSG_LOCKED": msgLocked, "MSG_EXIT": msgExit, "MSG_FAIL": msgFail,
	} {
		if n, ok := got[name]; !ok || n != want {
			t.Errorf("init.c has %s %#x (%v), Go %#x", name, n, ok, want)
		}
	}
	if got["MAX_FDS"] != maxFiles || got["MAX_FDS"] >= 253 /* SCM_MAX_FD */ {
		t.Errorf("MAX_FDS is %d", got["MAX_FDS"])
	}
}

// maxFiles is how many descriptors a plan may carry: init.c's MAX_FDS.
const maxFiles = 250

// What encode lays out is inside the plan, aligned, and where the header says.
func TestEncode(t *testing.T) {
	p := &Program{}
	a := p.String("odd")
	p.Bytes([]byte{1})
	words := p.Words(Value(7), a, p.String("b"), Value(0))
	slot := p.NewSlot()
	s := p.Call("s", "l", 123, Value(-1), a, p.File(40), p.Saved(slot), words)
	s.Refused(1, 38).Save(slot)
	p.Call("s", "m", 9, p.File(41), p.File(40)).Ignore()
	p.Exec("e", 59, true)
	b := p.encode()
	le := binary.LittleEndian
	u := func(off int) int { return int(le.Uint32(b[off:])) }
	if u(0) != planMagic || u(4) != 3 || u(8) != 2 || u(12) != 2 || u(28) != len(b) {
		t.Errorf("header % x", b[:planSize])
	}
	data := u(24)
	if u(16)%8 != 0 || data%8 != 0 || u(20) != u(16)+3*stepSize || data < u(20)+8 {
		t.Errorf("steps %d, relocs %d, data %d", u(16), u(20), data)
	}
	step := b[u(16):]
	if le.Uint32(step) != 123 || int16(le.Uint16(step[14:])) != -1 || int16(le.Uint16(step[16:])) != -38 || le.Uint32(step[20:]) != uint32(slot) {
		t.Errorf("step % x", step[:stepSize])
	}
	for i, want := range []byte{0, 1, 2, 3, 1, 0} {
		if step[8+i] != want {
			t.Errorf("argument %d is of kind %d", i, step[8+i])
		}
	}
	if le.Uint64(step[24:]) != ^uint64(0) || le.Uint64(step[40:]) != 0 || le.Uint64(step[stepSize+24:]) != 1 || le.Uint64(step[stepSize+32:]) != 0 {
		t.Error("arguments: a descriptor is named by its index, and each is sent once")
	}
	if step[6] != 0 || step[stepSize+6] != stepIgnore || step[2*stepSize+6] != stepExec|stepReady {
		t.Errorf("flags %d %d %d", step[6], step[stepSize+6], step[2*stepSize+6])
	}
	for i := range u(8) {
		word := u(20 + 0) // offset of the list
		off := int(le.Uint32(b[word+4*i:]))
		if off%8 != 0 || data+off+8 > len(b) || int(le.Uint64(b[data+off:])) >= len(b)-data {
			t.Errorf("pointer %d at %d", i, off)
		}
	}
	if string(b[data:data+4]) != "odd\x00" {
		t.Errorf("data % x", b[data:])
	}
}

func TestProgramText(t *testing.T) {
	p := &Program{}
	p.Call("mount", "mount %s", 1)
	p.Call("canary", "open", 2).Refused(13, 0)
	if got := p.Text(); got != "mount: mount %s\ncanary: open must fail with errno 13\n" {
		t.Errorf("%q", got)
	}
	if (&Program{}).Text() != "" || len((&Program{}).encode()) != planSize {
		t.Error("an empty program is more than its header")
	}
}
