package supervisor

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/landlock"
	"github.com/agentguard/agentguard/trace"
)

// BuildInfo says which build this is.
type BuildInfo struct {
	Version string   `json:"version"`         // git describe of the source, or "devel"
	Go      string   `json:"go"`              // runtime.Version
	OS      string   `json:"os"`              // GOOS
	Arch    string   `json:"arch"`            // GOARCH
	Schema  int      `json:"schema"`          // version of the record's schema
	BPF     string   `json:"bpf"`             // names the kernel programs that are built in
	Seams   []string `json:"seams,omitempty"` // layers that are off: only in test builds
}

// Build describes the running binary.
func Build() BuildInfo {
	return BuildInfo{
		Version: Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		Schema: trace.Version, BPF: bpf.Build(), Seams: seams(),
	}
}

// HostFacts is what can be said of the host by looking, without trying it: that
// is what doctor does.
type HostFacts struct {
	Kernel     string `json:"kernel"`       // release
	Machine    string `json:"machine"`      // uname -m
	Landlock   int    `json:"landlock_abi"` // 0: none
	CgroupMode string `json:"cgroup_mode"`  // v2, hybrid, v1; "" unknown
}

// Facts looks at the host. It needs no privilege.
func Facts() HostFacts {
	h := &Host{}
	h.kernel()
	f := HostFacts{Kernel: h.Info.Kernel, Machine: h.Info.Machine}
	if abi, err := landlock.ABI(); err == nil {
		f.Landlock = abi
	}
	if l, err := cgroup.Detect(); err == nil {
		f.CgroupMode = l.Mode()
	}
	return f
}

// MemTotal is the RAM of the host in bytes (sysinfo(2)), or 0.
func MemTotal() int64 {
	var i unix.Sysinfo_t
	if unix.Sysinfo(&i) != nil {
		return 0
	}
	return int64(i.Totalram) * int64(i.Unit)
}
