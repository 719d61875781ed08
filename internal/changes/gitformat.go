package changes

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strings"
)

func isBinary(b []byte) bool { return bytes.IndexByte(b[:min(len(b), 8000)], 0) >= 0 }

func gitMode(n *Node) string {
	switch {
	case n.Type == Symlink:
		return "120000"
	case n.Mode&0o100 != 0:
		return "100755"
	}
	return "100644"
}

func gitHash(b []byte, there bool) string {
	if !there {
		return strings.Repeat("0", 40)
	}
	h := sha1.New() // git's object names
	fmt.Fprintf(h, "blob %d\x00", len(b))
	h.Write(b)
	return hex.EncodeToString(h.Sum(nil))
}

// gitQuote writes a path as git does: in double quotes with C escapes when it
// has a control character, a quote, a backslash or a byte beyond ASCII.
func gitQuote(prefix, p string) string {
	s := prefix + p
	plain := true
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			plain = false
		}
	}
	if plain {
		return s
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case c < 0x20 || c >= 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// binary writes both directions of a binary patch: zlib, in lines of base 85.
func (p *Patcher) binary(before, after []byte) {
	p.w.WriteString("GIT binary patch\n")
	for _, side := range [][]byte{after, before} {
		fmt.Fprintf(&p.w, "literal %d\n", len(side))
		var z bytes.Buffer
		zw := zlib.NewWriter(&z)
		zw.Write(side) // to memory: cannot fail
		zw.Close()
		for data := z.Bytes(); len(data) > 0; {
			n := min(len(data), 52)
			p.line85(data[:n])
			data = data[n:]
		}
		p.w.WriteByte('\n')
	}
}

const digits85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"

func (p *Patcher) line85(data []byte) {
	length := byte('A' + len(data) - 1)
	if len(data) > 26 {
		length = byte('a' + len(data) - 27)
	}
	p.w.WriteByte(length)
	for len(data) > 0 {
		var v uint32
		for i := range 4 {
			v <<= 8
			if i < len(data) {
				v |= uint32(data[i])
			}
		}
		var out [5]byte
		for i := 4; i >= 0; i-- {
			out[i] = digits85[v%85]
			v /= 85
		}
		p.w.Write(out[:])
		data = data[min(4, len(data)):]
	}
	p.w.WriteByte('\n')
}
