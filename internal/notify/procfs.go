//go:build linux

package notify

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

var errForm = errors.New("notify: /proc says something that no kernel says")

// readStatus reads who a thread belongs to (/proc/TID/status, proc(5)).
func readStatus(tid uint32) (p Process, err error) {
	var room [8 << 10]byte // the names of groups may fill more: what is behind them is then unknown
	b, err := readProc(procPath(tid, "status"), room[:])
	if err != nil {
		return p, err
	}
	return parseStatus(b)
}

func parseStatus(b []byte) (p Process, err error) {
	for line := range bytes.Lines(b) {
		name, rest, _ := strings.Cut(string(line), ":")
		words := strings.Fields(rest)
		if len(words) == 0 {
			continue
		}
		switch name {
		case "Tgid":
			p.PID = number(words[0])
		case "PPid":
			p.PPID = number(words[0])
		case "Uid":
			p.UID = number(words[0])
		case "NStgid":
			p.NSPID = number(words[len(words)-1])
		}
	}
	if p.PID == 0 {
		return p, errForm
	}
	return p, nil
}

func number(s string) uint32 {
	n, _ := strconv.ParseUint(s, 10, 32)
	return uint32(n)
}

// stat is what is used of /proc/PID/stat.
type stat struct {
	zombie bool
	start  uint64 // CLOCK_BOOTTIME, ns, in steps of a clock tick
	user   uint64 // CPU time, ns, likewise
	system uint64
	forked bool   // PF_FORKNOEXEC: it has executed nothing since its fork
	stack  uint64 // addresses of the image; 0 where we may not know them
	args   uint64
}

const (
	ticks       = 1e9 / 100 // ns; USER_HZ is 100 on every architecture that we have
	forkNoExec  = 0x40      // PF_FORKNOEXEC, include/linux/sched.h
	statState   = 0         // fields of proc_pid_stat(5), from the third on, which is behind the name
	statFlags   = 9 - 3
	statUser    = 14 - 3
	statSystem  = 15 - 3
	statStart   = 22 - 3
	statStack   = 28 - 3
	statArgs    = 48 - 3
	statEnviron = 50 - 3
)

func readStat(pid uint32) (stat, error) {
	var room [2 << 10]byte
	b, err := readProc(procPath(pid, "stat"), room[:])
	if err != nil {
		return stat{}, err
	}
	return parseStat(b)
}

// readProc reads a file of /proc with as few calls as can be: there are several for
// each program that is executed.
func readProc(path string, to []byte) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	n, err := unix.Read(fd, to)
	_ = unix.Close(fd) // nothing was written
	if err != nil {
		return nil, err
	}
	return to[:n], nil
}

func parseStat(b []byte) (s stat, err error) {
	// The name may hold anything, a parenthesis too; nothing behind it does.
	words := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(words) <= statEnviron {
		return s, errForm
	}
	var n [statEnviron + 1]uint64
	for _, i := range []int{statFlags, statUser, statSystem, statStart, statStack, statArgs} {
		if n[i], err = strconv.ParseUint(words[i], 10, 64); err != nil {
			return s, errForm
		}
	}
	return stat{
		zombie: words[statState] == "Z" || words[statState] == "X",
		user:   n[statUser] * ticks, system: n[statSystem] * ticks,
		start: n[statStart] * ticks, forked: n[statFlags]&forkNoExec != 0, stack: n[statStack], args: n[statArgs],
	}, nil
}

func procPath(id uint32, name string) string {
	return "/proc/" + strconv.FormatUint(uint64(id), 10) + "/" + name
}

// livingThread finds a thread of a process whose first one has ended; 0: there is none,
// or not among the first ones.
func livingThread(pid uint32) uint32 {
	dir, err := os.Open(procPath(pid, "task"))
	if err != nil {
		return 0
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxThreads)
	if err != nil {
		return 0
	}
	for _, name := range names {
		tid := number(name)
		if s, err := readStat(tid); err == nil && !s.zombie {
			return tid
		}
	}
	return 0
}

const maxThreads = 16 // that are looked at

// readImage reads which file a process runs.
func readImage(pid uint32) (Image, error) {
	exe := procPath(pid, "exe")
	var st unix.Stat_t
	if err := unix.Stat(exe, &st); err != nil {
		return Image{}, err
	}
	name, err := os.Readlink(exe)
	if err != nil {
		return Image{}, err
	}
	i := Image{Dev: st.Dev, Inode: st.Ino, Ctime: st.Ctim.Nano(), Deleted: st.Nlink == 0}
	i.Path = []byte(live(name, i.Deleted))
	return i, nil
}

// live cuts what the kernel appends to the name of what has none any more. A file
// may be called so as well: the number of its names tells which it is.
func live(name string, deleted bool) string {
	if deleted {
		return strings.TrimSuffix(name, " (deleted)")
	}
	return name
}

// readDir reads where a relative path of a thread begins: its working directory
// (name "cwd") or one of its descriptors ("fd/N").
func readDir(tid uint32, name string) (path []byte, deleted bool) {
	link := procPath(tid, name)
	to, err := os.Readlink(link)
	if err != nil {
		return nil, false
	}
	var st unix.Stat_t
	if err := unix.Stat(link, &st); err == nil {
		deleted = st.Nlink == 0
	}
	return []byte(live(to, deleted)), deleted
}
