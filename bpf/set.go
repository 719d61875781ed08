package bpf

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// A pinned set is a directory of the bpffs:
//
//	runs, rings, counts  the shared maps
//	allow                what runs may reach, see Rule
//	meta                 what was attached: see metaEntry
//	l_NAME               the link of a cgroup program to the parent cgroup, of a process program, or of a standing program
//	p_NAME               a tracing program
//	links                the id of the link of sys_exit, while it is attached
//
// It is built under another name and renamed, so that it is there whole or not
// at all.

// cgroupNames are the programs on the parent cgroup, in the order of meta.
var cgroupNames = [...]string{
	"connect4", "connect6", "sendmsg4", "sendmsg6", "bind4", "bind6",
	"sock_create", "skb_egress", "skb_ingress",
	"connect_unix", "sendmsg_unix",
}

// optionalFrom is the index of the first of cgroupNames that a kernel may lack.
const optionalFrom = 9

// tracingNames are the sensor's programs. Those of processes stay attached as long
// as the set is pinned: to attach or detach one stops all CPUs six times, and a
// process that is born, executes or ends somewhere on the host pays 0.1 us for it.
// sys_exit, for which everybody would pay at every system call, is attached while
// a run lives. The last three are second copies of the first three, for kernels
// that preempt tracepoints (c/task.h).
var tracingNames = [...]string{
	"process_exit", "process_fork", "process_exec", "sys_exit",
	"process_exit2", "process_fork2", "process_exec2",
}

const (
	perCall    = 3 // index of sys_exit in tracingNames
	copiesFrom = 4 // of the first copy
)

// layout is part of what tells builds apart: it changes with what is pinned or
// attached in a set beyond the objects.
const layout = 2

const metaEntries = standingFrom + len(standingNames)

// metaEntry is what the pinned set was when it was built. The kernel froze the map.
type metaEntry struct {
	Parent uint64 // cgroup id
	Prog   uint32 // program id; 0 where the kernel has no such hook or part, or needs no second copy
	_      uint32
	Tag    [8]byte // of the program, as the kernel computed it
}

const setPrefix = "set_"

// setID names the pinned set of these objects on this kernel and parent.
func setID(cfg Config, parent uint64) (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", &os.SyscallError{Syscall: "uname", Err: err}
	}
	built := objects()
	h := sha256.New()
	for _, b := range [][]byte{built[:], u.Release[:], u.Version[:]} {
		h.Write(b)
	}
	h.Write(binary.LittleEndian.AppendUint64(nil, parent))
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(cfg.Level)))
	return fmt.Sprintf(setPrefix+"%x", h.Sum(nil)[:12]), nil
}

// openSet opens what is pinned and verifies it; an error means that it is not
// there or not as it was built.
func (p *Programs) openSet(parent uint64) (err error) {
	defer func() {
		if err != nil {
			p.closeSet()
		}
	}()
	for _, m := range []struct {
		name string
		to   **ebpf.Map
	}{{"runs", &p.runs}, {"rings", &p.rings}, {"counts", &p.counts}, {"links", &p.links}} {
		if *m.to, err = pinnedMap(p.pin(m.name), 0); err != nil {
			return err
		}
	}
	if p.meta, err = readMeta(p.pin("meta")); err != nil {
		return err
	}
	p.unix = p.meta[optionalFrom].Prog != 0
	for i, name := range tracingNames {
		want := p.meta[len(cgroupNames)+i]
		if i >= copiesFrom && want.Prog == 0 {
			continue
		}
		prog, err := pinnedProgram(p.pin("p_" + name))
		if err != nil {
			return err
		}
		p.tracing = append(p.tracing, prog)
		if err := verifyProgram(prog.FD(), want); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	p.resolves = p.meta[standingFrom].Prog != 0
	p.refusals = p.meta[standingFrom+refuseFrom].Prog != 0
	return p.verify(parent)
}

// verify checks that all programs of the set are still attached as they were built.
func (p *Programs) verify(parent uint64) error {
	for i, name := range cgroupNames {
		if i >= optionalFrom && p.meta[i].Prog == 0 {
			continue
		}
		if err := verifyLink(p.pin("l_"+name), attachTypes[i], p.meta[i], parent); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for i, want := range p.meta[len(cgroupNames):] {
		if i == perCall || want.Prog == 0 {
			continue
		}
		if err := verifyStanding(p.pin("l_"+standsAs(i)), want); err != nil {
			return err
		}
	}
	return nil
}

// standsAs is the name of entry i of meta after those of cgroup programs.
func standsAs(i int) string {
	if i < len(tracingNames) {
		return tracingNames[i]
	}
	return standingNames[i-len(tracingNames)]
}

func (p *Programs) closeSet() {
	parent := p.parent
	p.parent = nil
	p.Close()
	p.parent = parent
}

func readMeta(path string) ([metaEntries]metaEntry, error) {
	var entries [metaEntries]metaEntry
	m, err := pinnedMap(path, unix.BPF_F_RDONLY)
	if err != nil {
		return entries, err
	}
	defer m.Close()
	if int(m.ValueSize()) != binary.Size(entries) {
		return entries, errors.New("meta of another build")
	}
	return entries, m.Lookup(uint32(0), &entries)
}

// verifyLink checks that the pinned link still joins the program that was
// loaded to the parent cgroup. A link whose cgroup is gone has the id 0. Nothing
// else can have the program's number: the kernel gives out the next one each
// time, and comes back to the first after 2^31.
func verifyLink(path string, hook ebpf.AttachType, want metaEntry, parent uint64) error {
	fd, err := objGet(path, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	info, err := linkInfoOf(fd)
	if err == nil && (info.Cgroup != parent || info.Prog != want.Prog || info.Hook != uint32(hook)) {
		err = errors.New("link was changed")
	}
	return err
}

// verifyStanding checks that the pinned link still holds the program that was loaded.
func verifyStanding(path string, want metaEntry) error {
	fd, err := objGet(path, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	info, err := linkInfoOf(fd)
	if err == nil && info.Prog != want.Prog {
		err = fmt.Errorf("%s: link was changed", path)
	}
	return err
}

func verifyProgram(fd int, want metaEntry) error {
	info, err := infoOf(fd)
	if err != nil {
		return err
	}
	if info.ID != want.Prog || info.Tag != want.Tag {
		return errors.New("program was changed")
	}
	return nil
}

// install builds the set under the lock, unless another process just did.
func (p *Programs) install(parent uint64) error {
	unlock, err := lockFile(lockPath(p.cfg.PinDir, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if err := p.openSet(parent); err == nil {
		return nil
	}
	if err := p.removeStale(parent); err != nil {
		return err
	}
	if err := p.checkForeign(parent); err != nil {
		return err
	}
	building := p.pin("") + "_building"
	if err := os.Mkdir(building, 0o700); err != nil {
		return err
	}
	if err := build(building, p.cfg, parent); err != nil {
		return errors.Join(err, removePins(building))
	}
	if err := p.replaceOlder(parent); err != nil {
		return errors.Join(err, removePins(building))
	}
	if err := p.onlyAttached(1); err != nil { // another mount namespace began with us, under a lock of its own
		return errors.Join(err, removePins(building))
	}
	if err := os.Rename(building, p.pin("")); err != nil {
		return errors.Join(err, removePins(building))
	}
	return p.openSet(parent)
}

// removeStale removes half-built sets and sets whose parent cgroup is gone.
func (p *Programs) removeStale(parent uint64) error {
	sets, err := os.ReadDir(p.cfg.PinDir)
	if err != nil {
		return err
	}
	for _, set := range sets {
		if !strings.HasPrefix(set.Name(), setPrefix) {
			continue // the kernel puts files of its own there
		}
		dir := filepath.Join(p.cfg.PinDir, set.Name())
		gone := strings.HasSuffix(set.Name(), "_building")
		if id, err := parentOf(dir); !gone && err == nil && id != parent {
			exists, err := cgroupExists(p.parent, id)
			if err != nil {
				return err
			}
			gone = !exists
		}
		if gone {
			if err := removeSet(p.cfg.PinDir, set.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

// replaceOlder removes every other set of this parent. The new programs are
// attached by now, so the parent is never without.
func (p *Programs) replaceOlder(parent uint64) error {
	sets, err := os.ReadDir(p.cfg.PinDir)
	if err != nil {
		return err
	}
	for _, set := range sets {
		if !strings.HasPrefix(set.Name(), setPrefix) || strings.HasSuffix(set.Name(), "_building") {
			continue
		}
		id, err := parentOf(filepath.Join(p.cfg.PinDir, set.Name()))
		if err == nil && id != parent {
			continue
		}
		live, err := liveSlots(p.cfg.PinDir, set.Name())
		if err != nil {
			return err
		}
		if live > 0 {
			return fmt.Errorf("another build has %d live runs below %s: wait for their end", live, p.cfg.Parent)
		}
		if err := removeSet(p.cfg.PinDir, set.Name()); err != nil {
			return err
		}
	}
	return nil
}

// parentOf reads the parent cgroup of a pinned set of any build: the first eight bytes of meta.
func parentOf(dir string) (uint64, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, "meta"), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return 0, err
	}
	defer m.Close()
	value, err := m.LookupBytes(uint32(0))
	if err != nil {
		return 0, err
	}
	if len(value) < 8 {
		return 0, errors.New("meta is too short")
	}
	return binary.NativeEndian.Uint64(value), nil
}

func removeSet(pinDir, name string) error {
	return errors.Join(removePins(filepath.Join(pinDir, name)), os.RemoveAll(lockPath(pinDir, name)))
}

// removePins detaches the cgroup programs pinned in dir and removes it. Unpinning alone leaves a program attached until the
// kernel's workqueue comes to it (bpf_link_put in kernel/bpf/syscall.c), and the programs of a set that is gone refuse the
// sockets of a run that only the next set knows.
func removePins(dir string) error {
	links, _ := filepath.Glob(filepath.Join(dir, "l_*"))
	for _, pin := range links {
		if fd, err := objGet(pin, 0); err == nil {
			_ = linkDetach(fd) // what is no link has nothing to detach
			unix.Close(fd)
		}
	}
	return os.RemoveAll(dir)
}

// Build names the objects that are built in: equal names, equal programs. Runs
// of different builds need different parents.
func Build() string { return fmt.Sprintf("%x", objects())[:8] }

// objects tells builds apart by their objects, layout and call table.
var objects = sync.OnceValue(func() [sha256.Size]byte {
	table := callTable()
	text := append(make([]byte, 0, 1+len(objectsDigest)+10*len(table)), layout)
	text = append(text, objectsDigest...)
	for i := range table {
		call := &table[i]
		text = append(text, call.Path, call.Path2, call.Dir, call.Dir2, call.Addr, call.File, call.Extent, call.Act)
		text = order.AppendUint16(text, call.Flags)
	}
	return sha256.Sum256(text)
})
