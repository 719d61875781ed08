package codewatch

import (
	"encoding/binary"
	"os"
	"testing"
)

// segment is one program header.
type segment struct {
	kind, flags uint32
	file, mem   uint64
}

// image is an ELF file that consists of headers.
func image(is64 bool, list ...segment) []byte {
	le := binary.LittleEndian
	b := append([]byte("\x7fELF\x01\x01\x01"), make([]byte, elfHeader-7)...)
	le.PutUint32(b[28:], elfHeader)
	le.PutUint16(b[44:], uint16(len(list)))
	if is64 {
		b[4] = 2
		le.PutUint64(b[32:], elfHeader)
		le.PutUint16(b[56:], uint16(len(list)))
	}
	for _, s := range list {
		p := make([]byte, 32)
		le.PutUint32(p, s.kind)
		le.PutUint32(p[16:], uint32(s.file))
		le.PutUint32(p[20:], uint32(s.mem))
		le.PutUint32(p[24:], s.flags)
		if is64 {
			p = make([]byte, 56)
			le.PutUint32(p, s.kind)
			le.PutUint32(p[4:], s.flags)
			le.PutUint64(p[32:], s.file)
			le.PutUint64(p[40:], s.mem)
		}
		b = append(b, p...)
	}
	return b
}

func TestMutable(t *testing.T) {
	code, data, stack := segment{ptLoad, 5, 64, 64}, segment{ptLoad, 6, 64, 4096}, segment{ptStack, 6, 0, 16}
	for _, c := range []struct {
		label  string
		list   []segment
		on64   bool
		on32   bool
		prefix int // 0: all of the file
	}{
		{label: "usual", list: []segment{code, data, stack}},
		{label: "no word about the stack", list: []segment{code, data}, on32: true},
		{label: "an executable stack", list: []segment{code, {ptStack, 7, 0, 0}}, on64: true, on32: true},
		{label: "a segment to be written and executed", list: []segment{stack, {ptLoad, 7, 64, 64}}, on64: true, on32: true},
		{label: "memory behind code", list: []segment{{ptLoad, 5, 64, 65}, stack}, on64: true, on32: true},
		{label: "another kind", list: []segment{stack, {2, 7, 0, 16}}},
		{label: "too many", list: append(make([]segment, 2100), segment{ptLoad, 7, 64, 64})},
		{label: "cut", list: []segment{{ptLoad, 7, 64, 64}}, prefix: elfHeader + 8},
		{label: "no header", list: nil, prefix: 63},
	} {
		for _, is64 := range []bool{true, false} {
			b := image(is64, c.list...)
			if c.prefix > 0 {
				b = b[:c.prefix]
			}
			name := t.TempDir() + "/image"
			must(t, os.WriteFile(name, b, 0o600))
			f, err := os.Open(name)
			must(t, err)
			if got, want := mutable(int(f.Fd())), is64 && c.on64 || !is64 && c.on32; got != want {
				t.Errorf("%s, 64 bits %v: %v", c.label, is64, got)
			}
			f.Close()
		}
	}
}
