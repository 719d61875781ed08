package trace

import (
	"encoding/base64"
	"strconv"
	"time"
)

// line builds one record. A value of zero is left out, the rules that differ are
// named below. The order of the calls in appendEvent is the order of the schema.
type line struct {
	b     []byte
	stamp stamp
}

// stamp formats wall time as RFC 3339 in UTC with nine digits, and keeps the
// text of the last second, since most records share it.
type stamp struct {
	sec  int64
	text [len("2006-01-02T15:04:05.")]byte
	set  bool
}

// open begins a list before its first item, and separates the others.
func (l *line) open(key string, item int) {
	if item == 0 {
		l.b = append(l.b, key...)
	} else {
		l.b = append(l.b, ',')
	}
}

// uint, text and flag leave out zero values.
func (l *line) uint(key string, v uint64) {
	if v != 0 {
		l.number(key, v)
	}
}

func (l *line) text(key, v string) {
	if v != "" {
		l.b = append(l.b, key...)
		l.b, _ = appendJSON(l.b, v)
	}
}

func (l *line) flag(keyTrue string, v bool) {
	if v {
		l.b = append(l.b, keyTrue...)
	}
}

// number and int always write.
func (l *line) number(key string, v uint64) {
	l.b = strconv.AppendUint(append(l.b, key...), v, 10)
}

func (l *line) int(key string, v int64) {
	l.b = strconv.AppendInt(append(l.b, key...), v, 10)
}

func (l *line) id(key, boot string, start uint64, pid uint32) {
	if pid != 0 {
		l.b = append(append(l.b, key...), '"')
		l.b = append(appendID(l.b, boot, start, pid), '"')
	}
}

// named writes a number by its Linux name without allocating.
func (l *line) named(key string, names []string, n int32, prefix string) {
	if n == 0 {
		return
	}
	l.b = append(append(l.b, key...), '"')
	if n > 0 && int(n) < len(names) && names[n] != "" {
		l.b = append(l.b, names[n]...)
	} else {
		l.b = strconv.AppendInt(append(l.b, prefix...), int64(n), 10)
	}
	l.b = append(l.b, '"')
}

// bytes writes text that the command chose, its exact bytes in base64 when they
// are not UTF-8, and its full length when it is cut here or was cut before.
func (l *line) bytes(key, keyB64, keyLen string, v []byte, fullLen uint32) {
	if len(v) > MaxPath {
		fullLen = max(fullLen, uint32(min(len(v), 1<<31)))
		v = v[:MaxPath]
	}
	if len(v) > 0 {
		l.b = append(l.b, key...)
		var valid bool
		if l.b, valid = appendJSON(l.b, v); !valid {
			l.b = append(append(l.b, keyB64...), '"')
			l.b = append(base64.StdEncoding.AppendEncode(l.b, v), '"')
		}
	}
	if keyLen != "" {
		l.uint(keyLen, uint64(fullLen))
	}
}

func (s *stamp) append(b []byte, ns int64) []byte {
	sec, frac := ns/1e9, ns%1e9
	if frac < 0 {
		sec, frac = sec-1, frac+1e9
	}
	if !s.set || sec != s.sec {
		time.Unix(sec, 0).UTC().AppendFormat(s.text[:0], "2006-01-02T15:04:05.")
		s.sec, s.set = sec, true
	}
	b = append(b, s.text[:]...)
	for d := int64(1e8); d > 0; d /= 10 {
		b = append(b, '0'+byte(frac/d%10))
	}
	return append(b, 'Z')
}
