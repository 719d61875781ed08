package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// build loads everything, attaches the cgroup programs to the parent and pins
// all of it in dir.
func build(dir string, cfg Config, parent uint64) error {
	egress, err := load(loadEgress, cfg, parent, nil)
	if err != nil {
		return err
	}
	defer egress.Close()
	shared := map[string]*ebpf.Map{
		"runs": egress.Maps["runs"], "rings": egress.Maps["rings"], "counts": egress.Maps["counts"],
	}
	if err := egress.Maps["allow"].Pin(filepath.Join(dir, "allow")); err != nil {
		return err
	}
	for name, m := range shared {
		if err := m.Pin(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	sensor, err := loadSensorFor(cfg, parent, shared)
	if err != nil {
		return err
	}
	defer sensor.Close()
	programs := egress.Programs
	// Absent before Linux 6.7; recorded in meta, so that Support and the plan can say so.
	if unixsock, err := load(loadUnixsock, cfg, parent, shared); err == nil {
		defer unixsock.Close()
		for name, prog := range unixsock.Programs {
			programs[name] = prog
		}
	}
	var meta [metaEntries]metaEntry
	if err := pinAll(dir, cfg, parent, programs, sensor.Programs, &meta); err != nil {
		return err
	}
	shared["notes"] = sensor.Maps["notes"]
	if err := buildStanding(dir, cfg, parent, shared, &meta); err != nil {
		return err
	}
	return pinMeta(filepath.Join(dir, "meta"), meta)
}

func loadSensorFor(cfg Config, parent uint64, shared map[string]*ebpf.Map) (*ebpf.Collection, error) {
	return loadTyped(func() (*ebpf.CollectionSpec, error) { return sensorSpec(cfg.preempted) }, cfg, parent, shared)
}

// loadTyped loads programs with typed reads of kernel fields, or, where the
// verifier does not follow them, with reads by a helper (c/kernel.h, READ).
func loadTyped(typed func() (*ebpf.CollectionSpec, error), cfg Config, parent uint64, shared map[string]*ebpf.Map) (*ebpf.Collection, error) {
	if !cfg.untyped {
		c, err := load(typed, cfg, parent, shared)
		if err == nil || errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EPERM) {
			return c, err // not the verifier's answer
		}
	}
	return load(func() (*ebpf.CollectionSpec, error) {
		spec, err := typed()
		if err != nil {
			return nil, err
		}
		return spec, spec.Variables["typed_reads"].Set(uint32(0))
	}, cfg, parent, shared)
}

// sensorSpec is the sensor for this kernel. Where tracepoints can be preempted,
// programs for processes have second copies (c/task.h), and sys_exit comes by
// way of perf, if that is to be had.
func sensorSpec(preempted bool) (*ebpf.CollectionSpec, error) {
	spec, err := loadSensor()
	if err != nil {
		return nil, err
	}
	byPerf := spec.Programs[exitByPerf]
	delete(spec.Programs, exitByPerf)
	double, err := preemptsTracepoints()
	if err != nil {
		return nil, err
	}
	if double || preempted {
		if _, err := exitEvent(); err == nil {
			spec.Programs["sys_exit"] = byPerf
		}
		return spec, spec.Variables["doubled"].Set(uint32(1))
	}
	for _, name := range tracingNames[copiesFrom:] {
		delete(spec.Programs, name)
	}
	return spec, nil
}

// preemptsTracepoints goes by the version, since nothing else shows it before
// events are lost. A wrong answer costs 0.1 us for each process event, or such
// losses, which are counted (Stats.Missed).
func preemptsTracepoints() (bool, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return false, &os.SyscallError{Syscall: "uname", Err: err}
	}
	major, _, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), ".")
	n, err := strconv.Atoi(major)
	return err != nil || n >= 7, nil
}

func load(spec func() (*ebpf.CollectionSpec, error), cfg Config, parent uint64, shared map[string]*ebpf.Map) (*ebpf.Collection, error) {
	s, err := spec()
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]any{
		"level": uint32(cfg.Level), "parent_id": parent, "calls": *callTable(),
	} {
		if v := s.Variables[name]; v != nil {
			if err := v.Set(value); err != nil {
				return nil, err
			}
		}
	}
	return ebpf.NewCollectionWithOptions(s, ebpf.CollectionOptions{MapReplacements: shared})
}

// pinAll attaches the cgroup programs and those of processes, pins everything but
// the standing programs, and fills meta.
func pinAll(dir string, cfg Config, parent uint64, cgroup, tracing map[string]*ebpf.Program, meta *[metaEntries]metaEntry) error {
	for i, name := range cgroupNames {
		meta[i].Parent = parent
		prog := cgroup[name]
		if prog == nil && i >= optionalFrom {
			continue
		}
		if err := note(&meta[i], prog); err != nil {
			return err
		}
		if err := attachCgroup(filepath.Join(dir, "l_"+name), cfg.Parent, attachTypes[i], prog); err != nil {
			return fmt.Errorf("attach %s to %s: %w", name, cfg.Parent, err)
		}
	}
	for i, name := range tracingNames {
		if tracing[name] == nil && i >= copiesFrom {
			continue
		}
		if err := note(&meta[len(cgroupNames)+i], tracing[name]); err != nil {
			return err
		}
		if err := tracing[name].Pin(filepath.Join(dir, "p_"+name)); err != nil {
			return err
		}
		if i == perCall {
			continue
		}
		if err := attachPinned(filepath.Join(dir, "l_"+name), ebpf.AttachTraceRawTp, tracing[name]); err != nil {
			return fmt.Errorf("attach %s: %w", name, err)
		}
	}
	return pinLink(filepath.Join(dir, "links"))
}

// attachPinned attaches a tracing program for as long as the pin is there.
func attachPinned(pin string, attach ebpf.AttachType, prog *ebpf.Program) error {
	l, err := link.AttachTracing(link.TracingOptions{Program: prog, AttachType: attach})
	if err != nil {
		return err
	}
	return errors.Join(l.Pin(pin), l.Close())
}

// attachTypes are the hooks of cgroupNames.
var attachTypes = [len(cgroupNames)]ebpf.AttachType{
	ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect,
	ebpf.AttachCGroupUDP4Sendmsg, ebpf.AttachCGroupUDP6Sendmsg,
	ebpf.AttachCGroupInet4Bind, ebpf.AttachCGroupInet6Bind,
	ebpf.AttachCGroupInetSockCreate, ebpf.AttachCGroupInetEgress, ebpf.AttachCGroupInetIngress,
	ebpf.AttachCgroupUnixConnect, ebpf.AttachCgroupUnixSendmsg,
}

func attachCgroup(pin, cgroup string, attach ebpf.AttachType, prog *ebpf.Program) error {
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: attach, Program: prog})
	if err != nil {
		return err
	}
	return errors.Join(l.Pin(pin), l.Close())
}

func note(entry *metaEntry, prog *ebpf.Program) error {
	info, err := infoOf(prog.FD())
	if err != nil {
		return err
	}
	entry.Prog, entry.Tag = info.ID, info.Tag
	return nil
}

// pinLink pins the map where live runs find the link of sys_exit.
func pinLink(path string) error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "links", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return err
	}
	defer m.Close()
	return m.Pin(path)
}

func pinMeta(path string, meta [metaEntries]metaEntry) error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "meta", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(meta) * 24), MaxEntries: 1,
	})
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Put(uint32(0), &meta); err != nil {
		return err
	}
	if err := m.Freeze(); err != nil {
		return err
	}
	return m.Pin(path)
}
