package supervisor

import (
	"runtime"

	"golang.org/x/sys/unix"
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

// MemTotal is the RAM of the host in bytes (sysinfo(2)), or 0.
func MemTotal() int64 {
	var i unix.Sysinfo_t
	if unix.Sysinfo(&i) != nil {
		return 0
	}
	return int64(i.Totalram) * int64(i.Unit)
}
