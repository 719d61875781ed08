package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// Mappings name their own file, whatever descriptor it came from.
func TestMappingsAreRecorded(t *testing.T) {
	h := sharedHost(t)
	dir := fileDir(t, 1)
	events, _ := h.observe(h.open(), RunConfig{}, "maps", dir)
	var got []string
	var written uint64 // shared mappings that became writable: the second is counted, or told where another file took the first one's slot
	for _, ev := range ofType(events, File) {
		f := &ev.File
		if f.Path.Rooted && !bytes.HasPrefix(f.Path.Text, []byte(dir+"/")) {
			continue // of the act's run-time
		}
		if f.How == MappedWrite {
			if written++; written > 1 {
				continue
			}
		}
		got = append(got, fmt.Sprintf("%d %s %v %v", f.How, strings.ReplaceAll(string(f.Path.Text), dir, "DIR"), f.Object, f.Path.Deleted))
	}
	want := []string{
		"1 DIR/f0 false false", "1 memfd:hidden false false",
		"2 DIR/f0 true false", "3 DIR/f0 true false", "2 memfd:hidden true false", "2 DIR/f0 true true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	for _, ev := range ofType(events, Repeat) {
		if ev.File.How == MappedWrite {
			written += ev.File.Count
		}
	}
	if written != 2 {
		t.Errorf("%d writable mappings, want 2", written)
	}
}

// Memory that is executed and no file's content is told, and counted by thread.
func TestAnonymousMemoryIsRecorded(t *testing.T) {
	h := sharedHost(t)
	dir := fileDir(t, 1)
	events, stats := h.observe(h.open(), RunConfig{ChangesOnly: true}, "anonymous", dir)
	var made uint64
	var changed []string
	var shared uint64        // the inode of what is mapped so
	both := map[How]uint64{} // of a shared mapping that is executed and written
	for _, ev := range events {
		switch f := &ev.File; {
		case ev.Type == Repeat && f.How == MappedAnon:
			made += f.Count
		case ev.Type == File && f.How == MappedAnon:
			made++
			if len(f.Path.Text) > 0 || f.Inode != 0 || !f.Object && ev.NR != unix.SYS_MPROTECT || f.Args[2]&unix.PROT_EXEC == 0 {
				t.Errorf("%+v", f)
			}
		case ev.Type == File && f.How == MappedCopy:
			changed = append(changed, string(f.Path.Text))
		case ev.Type == File && (f.How == MappedExec || f.How == MappedWrite) && string(f.Path.Text) == dir+"/f3":
			both[f.How]++
			shared = f.Inode
		case ev.Type == Repeat && f.Inode == shared && f.How != Opened:
			both[f.How] += f.Count
		}
	}
	checkCount(t, stats, made, 10)
	if want := []string{dir + "/f0", dir + "/f1", dir + "/f2"}; stats.Missed == 0 && !slices.Equal(changed, want) {
		t.Errorf("changed pages of %q, or that can be, want %q", changed, want)
	}
	if stats.Missed == 0 && (both[MappedExec] != 2 || both[MappedWrite] != 2) {
		t.Errorf("shared mappings %v, want two of each", both)
	}
	if files := ofType(events, File); len(files) > 16 {
		t.Errorf("%d records of ten mappings", len(files))
	}
}

func init() { acts["busy-maps"] = actBusyMaps }

// actBusyMaps makes one mapping after the other executable, each of another file,
// while other threads keep the lock of all mappings busy.
func actBusyMaps(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	page := os.Getpagesize()
	var stop atomic.Bool
	var busy sync.WaitGroup
	for range 3 {
		busy.Go(func() {
			runtime.LockOSThread()
			for !stop.Load() {
				if b, err := unix.Mmap(-1, 0, 64*page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON); err == nil {
					_ = unix.Munmap(b)
				}
			}
		})
	}
	defer busy.Wait()
	defer stop.Store(true)
	for i := range n {
		fd, err := unix.Open(fmt.Sprintf("%s/f%d", args[0], i), unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		mem, err := unix.Mmap(fd, 0, page, unix.PROT_READ, unix.MAP_PRIVATE)
		if err := errors.Join(err, unix.Close(fd)); err != nil {
			return err
		}
		if err := unix.Mprotect(mem, unix.PROT_READ|unix.PROT_EXEC); err != nil {
			return err
		}
	}
	return nil
}

// No mapping becomes executable without a word of it, whatever other threads do meanwhile.
func TestBusyMappings(t *testing.T) {
	h := sharedHost(t)
	const n = 300
	dir := fileDir(t, n)
	events, stats := h.observe(h.open(), RunConfig{RingBytes: 8 << 20}, "busy-maps", dir, strconv.Itoa(n))
	var files, unknown uint64
	for _, ev := range events {
		switch f := &ev.File; {
		case ev.NR != unix.SYS_MPROTECT && ev.Type != Repeat:
		case ev.Type == File && f.How == MappedExec && strings.HasPrefix(string(f.Path.Text), dir+"/"):
			files++
		case ev.Type == File && f.How == MappedAnon:
			unknown++
		case ev.Type == Repeat && f.How == MappedAnon:
			unknown += f.Count
		}
	}
	t.Logf("%d by their file, %d without", files, unknown)
	checkCount(t, stats, files+unknown, n)
}
