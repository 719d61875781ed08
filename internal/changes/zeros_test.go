package changes

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Blocks of zeros become holes, and what ends with them keeps its size: also
// where the last one is as large as the buffer.
func TestZerosKeepTheirSize(t *testing.T) {
	const block = 128 << 10
	upper, base := t.TempDir(), t.TempDir()
	want := map[string][]byte{}
	for _, size := range []int{0, 1, 4095, 4096, block - 1, block, block + 1, 2 * block, 3*block + 4096, 8 * block} {
		for name, head := range map[string]int{"zeros": 0, "begun": 1, "full": size} {
			b := make([]byte, size)
			copy(b, bytes.Repeat([]byte("x"), min(head, size)))
			want[fmt.Sprintf("%s.%d", name, size)] = b
		}
	}
	for name, b := range want {
		must(t, os.WriteFile(filepath.Join(upper, name), b, 0o644))
	}
	must(t, commitAll(t, plainTree(t, upper, base), base))
	for name, b := range want {
		if got, err := os.ReadFile(filepath.Join(base, name)); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%s has %d bytes: %v", name, len(got), err)
		}
	}
}
