package supervisor

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/loopfs"
	"github.com/agentguard/agentguard/policy"
)

// The run's own storage (staged changes, /tmp, home, /dev/shm) is one file system
// of a size: a tmpfs, or ext4 in an image in the run's directory, which is as
// exact and takes no memory. Decision 0020.
const (
	upperRAM  = "ram"
	upperDisk = "disk"
	upperAuto = "auto"

	clauseUpper = "filesystem.upper"
)

// memAvailable is what /proc/meminfo says can be had without swapping, in bytes;
// 0 unknown.
func memAvailable() int64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "MemAvailable:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0
			}
			return n << 10
		}
	}
	return 0
}

// chooseUpper decides where the run's own storage lies. A disk that was asked for
// and cannot be had is a gap, see hostGaps; auto then takes memory. The default
// size is what nobody asked for: no start waits for a file system of that size.
func chooseUpper(p *policy.Policy, h *Host) string {
	size := limit(p.MaxOutputBytes)
	if size < 0 || h.noDisk != "" {
		return upperRAM
	}
	switch p.Upper.Value {
	case upperDisk:
		return upperDisk
	case upperAuto:
		memory, asked := limit(p.MaxMemory), !p.MaxOutputBytes.Source.IsDefault()
		short := h.memAvailable > 0 && size > h.memAvailable/2 || memory >= 0 && size > memory
		if asked && short && loopfs.Size(size) < h.diskFree {
			return upperDisk
		}
	}
	return upperRAM
}

// upperGap says why the disk that was asked for cannot be had; "" when it can.
func upperGap(p *policy.Policy, h *Host) (missing, remedy string) {
	switch {
	case p.Upper.Value != upperDisk:
		return "", ""
	case limit(p.MaxOutputBytes) < 0:
		return "a file system on disk has a size, and max_output_bytes is none", "give it a size with --output, or use --upper ram"
	case h.noDisk != "":
		return "the run's own storage cannot lie on disk: " + h.noDisk, "use --upper ram, keep records elsewhere with --state DIR, or accept memory with --allow-gap " + clauseUpper
	}
	return "", ""
}

// newScratch makes the run's own storage. dir is the run's directory.
func newScratch(p *Plan, dir *os.File) (*os.File, error) {
	if p.Upper != upperDisk {
		return newTmpfs("scratch", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV,
			"mode=0755", "size="+tmpfsLimit(p.Limits.Output), "nr_inodes="+tmpfsLimit(filesToMount(p)))
	}
	f, err := loopfs.Make(dir, p.Limits.Output, filesToMount(p))
	if err == nil {
		return f, nil
	}
	r := &Refusal{What: "the run's own storage cannot be made on disk", Clause: clauseUpper, Err: err, Remedy: "use --upper ram"}
	if errors.Is(err, unix.ENOSPC) {
		r.Remedy = "make room, give a smaller --output, or use --upper ram"
	}
	return nil, r
}
