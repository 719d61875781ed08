package seal

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"strconv"

	"golang.org/x/mod/sumdb/tlog"
)

// lineEnd is the length of the first line with its newline; of all, when there
// is none.
func lineEnd(b []byte) int {
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		return i + 1
	}
	return len(b)
}

// lines reads a record line by line, of any length, in bounded memory.
type lines struct {
	in   *bufio.Reader
	line hash.Hash
	file hash.Hash
	n    int64 // lines read
	at   int64 // bytes read
}

func newLines(r io.Reader) *lines {
	return &lines{in: bufio.NewReaderSize(r, 64<<10), line: sha256.New(), file: sha256.New()}
}

// next returns the digest and the length of the next line. A last line without
// a newline counts as one.
func (l *lines) next() (d [sha256.Size]byte, size int64, err error) {
	l.line.Reset()
	for {
		part, err := l.in.ReadSlice('\n')
		l.line.Write(part)
		l.file.Write(part)
		size += int64(len(part))
		switch {
		case err == bufio.ErrBufferFull:
			continue
		case err == io.EOF && size == 0:
			return d, 0, io.EOF
		case err != nil && err != io.EOF:
			return d, size, err
		}
		l.line.Sum(d[:0])
		l.n++
		l.at += size
		return d, size, nil
	}
}

// table reads the block table.
type table struct {
	in *bufio.Scanner
	n  int // rows read
}

const maxRow = 4 << 10 // bytes of a row; one of 64 records has about 400

func newTable(r io.Reader) *table {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, maxRow), maxRow)
	s.Split(wholeLines)
	return &table{in: s}
}

// wholeLines is bufio.ScanLines, but a last line without its newline is none.
func wholeLines(data []byte, _ bool) (int, []byte, error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i+1], nil
	}
	return 0, nil, nil
}

// next returns the next row, or io.EOF.
func (t *table) next() (row, error) {
	if !t.in.Scan() {
		if err := t.in.Err(); err != nil {
			return row{}, fmt.Errorf("row %d: %w", t.n+1, err)
		}
		return row{}, io.EOF
	}
	t.n++
	r, err := parseRow(t.in.Bytes())
	if err != nil {
		return row{}, fmt.Errorf("row %d: %w", t.n, err)
	}
	return r, nil
}

var errRow = errors.New("not a row of a block table")

func parseRow(b []byte) (row, error) {
	f := bytes.Split(bytes.TrimSuffix(b, []byte{'\n'}), []byte{' '})
	if len(f) != 4 {
		return row{}, errRow
	}
	n, err1 := strconv.Atoi(string(f[0]))
	size, err2 := strconv.ParseInt(string(f[1]), 10, 64)
	leaf, err3 := tlog.ParseHash(string(f[2]))
	marks, err4 := base64.StdEncoding.DecodeString(string(f[3]))
	if errors.Join(err1, err2, err3, err4) != nil || n < 1 || n > BlockRecords || size < int64(n) || size > math.MaxInt64/2 || len(marks) != n*markSize {
		return row{}, errRow
	}
	r := row{records: n, bytes: size, leaf: leaf, marks: marks}
	if !bytes.Equal(appendRow(nil, r), b) { // one row has one form
		return row{}, errRow
	}
	return r, nil
}
