package supervisor

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
)

// BuildInfo says which build this is.
type BuildInfo struct {
	Version string   `json:"version"`
	Go      string   `json:"go"`
	OS      string   `json:"os"`
	Arch    string   `json:"arch"`
	Seams   []string `json:"seams,omitempty"` // layers that are off: only in test builds
}

// Build describes the running binary.
func Build() BuildInfo {
	return BuildInfo{Version: Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, Seams: seams()}
}

// MemTotal is the RAM of the host in bytes (proc_meminfo(5)), or 0.
func MemTotal() int64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte("MemTotal:")); ok {
			kb, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte("kB")))), 10, 64)
			if err == nil {
				return kb << 10
			}
		}
	}
	return 0
}
