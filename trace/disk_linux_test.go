package trace

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
)

// onTmpfs creates a file on a file system of the given size, which only a thread
// of this test can see, and calls f with the file and a function that fills what
// room is left, then another that makes room again.
func onTmpfs(t *testing.T, size int, f func(rec *os.File, fill, free func())) {
	testenv.Root(t)
	dir := t.TempDir()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread and its namespace end here
		done <- func() error {
			if err := syscall.Unshare(syscall.CLONE_FS | syscall.CLONE_NEWNS); err != nil {
				return err
			}
			if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
				return err
			}
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
				return err
			}
			defer syscall.Unmount(dir, syscall.MNT_DETACH)
			rec, err := os.OpenFile(dir+"/trace.jsonl", os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
			if err != nil {
				return err
			}
			defer rec.Close()
			ballast, err := os.Create(dir + "/ballast")
			if err != nil {
				return err
			}
			defer ballast.Close()
			f(rec, func() {
				for _, n := range []int{64 << 10, 4096, 1} {
					for block := make([]byte, n); ; {
						if _, err := ballast.Write(block); err != nil {
							break
						}
					}
				}
			}, func() { ballast.Truncate(0) })
			return nil
		}()
	}()
	if err := <-done; err != nil {
		testenv.Missing(t, "mount-namespace", err.Error())
	}
}

// TestRealFullDisk fills a disk in three ways: the record itself fills it,
// another file fills it for good, another file fills it for a while.
func TestRealFullDisk(t *testing.T) {
	tests := []struct {
		name           string
		before, during int // records before the disk is filled, and after
		fill, free     bool
	}{
		{"by the record", 5000, 0, false, false},
		{"by another file", 1000, 1000, true, false},
		{"for a while", 1000, 1000, true, true},
		{"from the first record on", 0, 1000, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			onTmpfs(t, 1<<20, func(rec *os.File, fill, free func()) {
				w := NewWriter(rec, testClock)
				failed := false
				write := func(n int) {
					for i := range n {
						err := w.Append(openEvent(i))
						failed = failed || errors.Is(err, syscall.ENOSPC)
					}
					failed = w.Flush() != nil || failed
				}
				write(tt.before)
				if tt.fill {
					fill()
				}
				write(tt.during)
				if tt.free {
					free()
				}
				if !failed {
					t.Error("the disk was not full")
				}
				if err := w.Close(nil); !errors.Is(err, syscall.ENOSPC) {
					t.Errorf("Close: %v", err)
				}
				b, err := os.ReadFile(rec.Name())
				if err != nil {
					t.Fatal(err)
				}
				events, report := readAll(t, b)
				opens := 0
				for _, e := range events {
					if e.Kind == KindOpen {
						opens++
					}
				}
				if total := tt.before + tt.during; opens+int(w.lost()) != total {
					t.Errorf("%d kept, %d lost of %d", opens, w.lost(), total)
				}
				want := Incomplete
				if tt.before == 0 && !tt.free {
					want = Unsealed
				}
				j, why := report.Judge()
				own, _ := w.Judge()
				if j != want || own != want || report.Missing != 0 || report.BadLines != 0 || report.Torn {
					t.Errorf("judged %s (the writer: %s), want %s: %v", j, own, want, why)
				}
				t.Logf("%d kept, %d lost, %d bytes, %s", opens, w.lost(), len(b), j)
			})
		})
	}
}
