package seal

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
	"sync"

	"golang.org/x/mod/sumdb/tlog"
)

// BlockRecords is the most records that a block holds. A checkpoint ends a
// block early.
const BlockRecords = 64

// markSize is how many bytes of each record's digest the block table keeps.
// They prove nothing: they tell where a block that does not match differs.
const markSize = 4

// Head is what a checkpoint or a seal says about the record up to a point.
type Head struct {
	Blocks  int64     // leaves of the tree
	Root    tlog.Hash // RFC 6962, section 2.1
	Records int64     // in these blocks
	Bytes   int64     // of the file that they fill
}

// frontier is the right edge of an RFC 6962 tree: all that is needed to add
// leaves to it and to know its root.
type frontier struct {
	size int64
	edge [63]tlog.Hash // edge[i] is the root of the full subtree of 1<<i leaves, if bit i of size is set
}

func (f *frontier) add(leaf tlog.Hash) {
	level := 0
	for ; f.size>>level&1 == 1; level++ {
		leaf = tlog.NodeHash(f.edge[level], leaf)
	}
	f.edge[level] = leaf
	f.size++
}

// root is that of the leaves so far; of no leaves it is the hash of nothing.
func (f *frontier) root() tlog.Hash {
	if f.size == 0 {
		return sha256.Sum256(nil)
	}
	var root tlog.Hash
	have := false
	for level := range f.edge {
		if f.size>>level&1 == 0 {
			continue
		}
		if have {
			root = tlog.NodeHash(f.edge[level], root)
		} else {
			root, have = f.edge[level], true
		}
	}
	return root
}

// Builder hashes a record while it is written. A record's digest is the SHA-256
// of its line with the newline; the digests of a block, one after the other,
// are a leaf of the tree. Builder is safe for concurrent use.
type Builder struct {
	mu      sync.Mutex
	file    hash.Hash // of all lines
	open    []byte    // digests of the block that is not full yet
	bytes   int64     // of the open block
	tree    frontier
	records int64 // in whole blocks
	length  int64 // bytes in whole blocks
	table   []byte
}

// NewBuilder returns the Builder of an empty record.
func NewBuilder() *Builder {
	return &Builder{file: sha256.New(), open: make([]byte, 0, BlockRecords*sha256.Size)}
}

// Add takes whole lines, each with its newline, in the order of the file.
func (b *Builder) Add(lines []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.file.Write(lines)
	for len(lines) > 0 {
		n := lineEnd(lines)
		b.add(lines[:n])
		lines = lines[n:]
	}
}

func (b *Builder) add(line []byte) {
	d := sha256.Sum256(line)
	b.open = append(b.open, d[:]...)
	b.bytes += int64(len(line))
	if len(b.open) == BlockRecords*sha256.Size {
		b.close()
	}
}

// close ends the open block, if it holds anything.
func (b *Builder) close() {
	n := len(b.open) / sha256.Size
	if n == 0 {
		return
	}
	leaf := tlog.RecordHash(b.open)
	b.tree.add(leaf)
	b.table = appendRow(b.table, row{records: n, bytes: b.bytes, leaf: leaf, marks: marks(b.open)})
	b.records += int64(n)
	b.length += b.bytes
	b.open, b.bytes = b.open[:0], 0
}

// Follow adds the record in r, with the first records in the blocks that the
// table had them in: checkpoints were signed over these.
func (b *Builder) Follow(r *bufio.Reader, table io.Reader, records int64) error {
	t := newTable(table)
	left := 0 // of the row
	for n := int64(0); ; n++ {
		if n < records && left == 0 {
			row, err := t.next()
			if err != nil {
				return fmt.Errorf("seal: the block table: %w", err)
			}
			left = row.records
		}
		line, err := readLine(r)
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		b.Add(line)
		if left--; left == 0 && n < records {
			b.Cut()
		}
	}
}

// Cut ends the open block and returns the head of the tree over everything that
// was added.
func (b *Builder) Cut() Head {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.close()
	return Head{Blocks: b.tree.size, Root: b.tree.root(), Records: b.records, Bytes: b.length}
}

// Unsealed reports how many records were added since the last Cut.
func (b *Builder) Unsealed(since Head) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.records + int64(len(b.open)/sha256.Size) - since.Records
}

// Table returns the rows of the block table since the last call.
func (b *Builder) Table() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.table
	b.table = nil
	return t
}

// Sum is the SHA-256 of all that was added.
func (b *Builder) Sum() (sum [sha256.Size]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.file.Sum(sum[:0])
	return sum
}

// row is one line of the block table: what the block holds, its leaf hash, and
// the first bytes of each of its records' digests.
type row struct {
	records int
	bytes   int64
	leaf    tlog.Hash
	marks   []byte
}

// marks are the first bytes of each digest.
func marks(digests []byte) []byte {
	out := make([]byte, 0, len(digests)/sha256.Size*markSize)
	for ; len(digests) > 0; digests = digests[sha256.Size:] {
		out = append(out, digests[:markSize]...)
	}
	return out
}

func appendRow(b []byte, r row) []byte {
	b = strconv.AppendInt(b, int64(r.records), 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, r.bytes, 10)
	b = append(b, ' ')
	b = base64.StdEncoding.AppendEncode(b, r.leaf[:])
	b = append(b, ' ')
	b = base64.StdEncoding.AppendEncode(b, r.marks)
	return append(b, '\n')
}
