package supervisor

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentguard/agentguard/internal/mountinfo"
	"github.com/agentguard/agentguard/trace"
)

// inside is what this process is in. Each is judged by what shows itself: a
// machine monitor or a container may hide, and then nothing is found.
type inside struct {
	VM        sign `json:"vm"`
	Container sign `json:"container"`
	Envelope  sign `json:"envelope"` // another sandbox, or ours

	domains int  // of Landlock
	userNS  bool // not the host's
}

// sign is what was looked for, and what tells.
type sign struct {
	Found    bool     `json:"found"`
	Name     string   `json:"name,omitempty"` // what it says it is; hostile text, quoted
	Evidence []string `json:"evidence"`       // also what speaks for it, but not enough
}

func (s *sign) add(evidence string) {
	s.Found = true
	s.Evidence = append(s.Evidence, oneLine(evidence))
}

// addIf adds evidence when a condition holds.
func (s *sign) addIf(cond bool, evidence string) {
	if cond {
		s.add(evidence)
	}
}

func lookAround(abi int) inside {
	in := inside{VM: findVM(), Container: findContainer()}
	in.userNS = foreign(os.Readlink, "user", initialUserNS) || !identityMap(sample("/proc/self/uid_map"))
	in.findEnvelope(abi)
	for _, s := range []*sign{&in.VM, &in.Container, &in.Envelope} {
		if s.Evidence == nil {
			s.Evidence = []string{} // [] in JSON, never null
		}
	}
	return in
}

// lines are the sentences about it for a reader.
func (in *inside) lines() []string {
	var out []string
	for _, w := range []struct {
		s    *sign
		what string
		none string
	}{
		{&in.VM, "a virtual machine", "no virtual machine shows itself"},
		{&in.Container, "a container", "no container shows itself"},
		{&in.Envelope, "another envelope", "no other envelope"},
	} {
		line := w.none
		if w.s.Found {
			line = "inside " + w.what
		}
		if w.s.Name != "" {
			line += ", " + w.s.Name
		}
		if len(w.s.Evidence) > 0 {
			line += ": " + strings.Join(w.s.Evidence, "; ")
		}
		out = append(out, line)
	}
	return out
}

// sample reads at most 64 KiB of a small file; "" where it cannot be read.
func sample(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, 64<<10))
	return b
}

// word is the quoted, bounded first line of a small file.
func word(path string) string { return wordOf(sample(path)) }

func wordOf(b []byte) string {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	line = bytes.Trim(bytes.TrimSpace(line), "\x00")
	if len(line) == 0 {
		return ""
	}
	return trace.Quote(line[:min(len(line), 100)])
}

func findVM() sign {
	var s sign
	s.addIf(hypervisorFlag(sample("/proc/cpuinfo")), "cpuinfo has the hypervisor flag")
	if t := word("/sys/hypervisor/type"); t != "" {
		s.add("/sys/hypervisor/type says " + t)
		s.Name = t
	}
	if c := word("/proc/device-tree/hypervisor/compatible"); c != "" {
		s.add("the device tree has a hypervisor: " + c)
		s.Name = c
	}
	if v, _ := filepath.Glob("/sys/bus/virtio/devices/*"); len(v) > 0 {
		s.add(fmt.Sprintf("virtio devices: %d", len(v)))
	}
	// DMI names the machine, virtual or not, so it is no evidence by itself.
	vendor, product := word("/sys/class/dmi/id/sys_vendor"), word("/sys/class/dmi/id/product_name")
	s.addIf(virtualVendor(vendor+" "+product), "DMI names a virtual machine")
	if s.Found && vendor+product != "" {
		s.Name = strings.TrimSpace(vendor + " " + product)
	}
	return s
}

// virtualVendors are DMI strings that only virtual machines have (systemd's
// virt.c has the same list).
var virtualVendors = []string{"KVM", "QEMU", "VMware", "VirtualBox", "innotek", "Xen", "Bochs", "Parallels", "BHYVE", "Virtual Machine", "Apple Virtualization", "Firecracker", "Google Compute Engine"}

func virtualVendor(dmi string) bool {
	return slices.ContainsFunc(virtualVendors, func(v string) bool { return strings.Contains(dmi, v) })
}

// hypervisorFlag looks for the CPUID bit that monitors set (x86 only).
func hypervisorFlag(cpuinfo []byte) bool {
	for line := range bytes.Lines(cpuinfo) {
		name, value, ok := bytes.Cut(line, []byte(":"))
		if ok && string(bytes.TrimSpace(name)) == "flags" {
			return slices.Contains(strings.Fields(string(value)), "hypervisor")
		}
	}
	return false
}

// readMounts is the mount table of this process; what there is of it where it cannot be read whole.
func readMounts() []mountinfo.Mount {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, 16<<20))
	return slices.Collect(mountinfo.All(text))
}
