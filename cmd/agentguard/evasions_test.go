package main

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/agentguard/agentguard/trace"
)

// evasions is the corpus, in the order of docs/evasion.md.
var evasions = []evasion{
	{1, "argv_race.c", "another thread rewrites the arguments of an execve", "recorded", "the arguments that the new program has, from its own memory", checkArgvRace},
	{1, "dup2_race.c", "another thread puts a different file at the descriptor that open returns", "marked", "every open, as fd-exit", checkDup2Race},
	{1, "name_race.c", "another thread changes the name of a file that is removed", "marked", "the name that the kernel has looked up, with fentry; else path_source user", checkNameRace},
	{2, "unreadable.py", "arguments in memory that cannot be read; userfaultfd", "marked", "the call with path_source unreadable; userfaultfd refused", checkUnreadable},
	{3, "confusion.py", "relative paths, symbolic links, a directory's descriptor", "recorded", "the file's own path and inode, and the text that was given", checkConfusion},
	{4, "io_uring.py", "io_uring", "refused", "io_uring_setup", deny(trace.KindDeny, "io_uring_setup")},
	{5, "copy_calls.py", "copy_file_range and sendfile instead of write", "recorded", "the files opened to be written, the bytes in the totals", checkCopies},
	{6, "mmap_write.py", "writes through a shared mapping", "recorded", "mmap_write of the file", checkMmapWrite},
	{6, "held.py", "a program of a copy-on-write tree that stays mapped to be written", "marked", "its exec, with the digest as raced", checkHeld},
	{7, "other_names.py", "a descriptor that was opened before the sandbox", "refused", "the descriptors that the command has: 0, 1 and 2", checkInherited},
	{7, "received.py", "a descriptor that another process sends by a unix socket", "marked", "receive with the path and the inode of the file, as fd-exit", checkReceived},
	{8, "memfd_exec.py", "execve of a memfd", "recorded", "exec with memfd, the arguments, the digest (raced where the process ends at once)", checkMemfd},
	{9, "deleted_exec.py", "execve of a file that is unlinked", "recorded", "exec with deleted, the path that it had, the inode, the digest", checkDeleted},
	{10, "other_names.py", "a program by way of /proc/self/root", "recorded", "the kernel's path, /usr/bin/id, and its digest", checkProcRoot},
	{11, "other_names.py", "a program copied, linked, renamed", "recorded", "one inode and one digest under each name; create, link, rename", checkOtherNames},
	{12, "loader.py", "ld.so with the program as an argument", "recorded", "mmap_exec of the program by ld.so, its digest", checkLoader},
	{12, "own_memory.py", "code in memory that no call makes executable: segments and a stack of the program's own header, shared memory", "recorded", "mmap_exec with anon, of the program; shmat refused", checkOwnMemory},
	{13, "shebang.py", "a script whose interpreter is a script", "recorded", "exec of sh with script and interp, all in argv; the digest of each script", checkShebang},
	{14, "inline.py", "sh -c, python -c", "recorded", "the whole text in argv, and in code/ by its digest", checkInline},
	{15, "preload.py", "LD_PRELOAD", "recorded", "the variable's name, mmap_exec and digest of the library; no value", checkPreload},
	{16, "argv_flood.py", "arguments that are too long", "marked", "128 KiB, the whole length and count, argv_truncated", checkFloodedArgs},
	{17, "odd_text.py", "no argv[0], bytes, newlines, a false comm", "recorded", "the exact bytes, one record a line", checkOddText},
	{18, "deep_path.py", "paths longer than 4096 bytes", "marked", "the end of the path, its whole length, truncated, the inode", checkDeepPath},
	{19, "symlink_race.py", "a symbolic link that changes between check and open", "recorded", "the inode that was opened, as often as it was", checkSymlinkRace},
	{20, "name_tricks.py", "O_TMPFILE and linkat, RENAME_EXCHANGE", "recorded", "create, link, rename with its flags", checkNameTricks},
	{21, "families.py", "double forks, setsid, namespaces, cgroups", "recorded", "every process with its parents; unshare refused", checkFamilies},
	{22, "short_lives.py", "processes that live for a moment", "recorded", "fork and exit of each, with an identity of its own", checkShortLives},
	{23, "flood.py", "a flood of records around the one that matters", "recorded", "the exec, and the number of the rest", checkFlood},
	{24, "delegation.py", "sockets of daemons; files that git executes later", "recorded", "connect with the path; create and chmod of the hook", checkDelegation},
	{25, "egress.py", "UDP, mapped addresses, TCP Fast Open, MPTCP, raw and other families", "refused", "each with its address or family", checkEgress},
	{26, "tampering.py", "ptrace, process_vm, bpf, perf, kexec, modules, signals to pid 1", "refused", "each call", checkTampering},
	{27, "clocks.py", "another clock, a time namespace", "refused", "both calls; records are ordered by number and boot time", deny(trace.KindDeny, "clock_settime", "unshare")},
	{28, "preempted.py", "system calls inside which others of the CPU are preempted", "recorded", "each call; what the kernel skips is counted", checkPreempted},
	{29, "int80.c", "32-bit and x32 calls", "refused", "exit by SIGSYS of the process that tried", checkCompat},
	{30, "invented.py", "a seccomp filter of the command's own that answers calls without making them", "marked", "each call of a thread behind it, as filtered; none before it", checkInvented},
}

// checkPreempted wants every call once: a kernel that skips the sensor while a
// task is preempted inside it would lack some (docs/decisions/0014).
func checkPreempted(r *evidence) error {
	made := map[string]int{}
	for _, e := range r.find(trace.KindMkdir, func(e *trace.Event) bool { return e.Errno == 0 }) {
		made[string(e.Path)]++
	}
	var skipped uint64
	for _, e := range r.find(trace.KindLoss, func(e *trace.Event) bool { return e.Loss.Cause == "recursion" }) {
		skipped += e.Loss.Count
	}
	if n := uint64(len(made)); n > 4000 || n+skipped < 4000 || n < 3990 { // a few by nesting, on a busy host
		return fmt.Errorf("%d directories of 4000, %d programs skipped", n, skipped)
	}
	return nil
}

func checkArgvRace(r *evidence) error {
	printed := strings.Fields(r.out)
	execs := r.find(trace.KindExec, argument(""))
	var seen []string
	for _, e := range execs {
		if len(e.Argv) == 2 && string(e.Argv[0]) == "echo" {
			seen = append(seen, string(e.Argv[1]))
		}
	}
	if strings.Join(seen, " ") != strings.Join(printed, " ") || len(seen) != 100 {
		return fmt.Errorf("recorded %q, printed %q", seen, printed)
	}
	return nil
}

func checkDup2Race(r *evidence) error {
	var acts, named, alone uint64
	for _, e := range r.find(trace.KindOpen, nil) {
		if e.Access == "r" && (string(e.Path) == r.in("secret") || string(e.Path) == r.in("decoy")) {
			acts += e.Times()
			if e.PathSource == trace.PathKernel {
				alone += e.Times() // before there was a second thread
			} else if e.PathSource != trace.PathFDExit {
				return fmt.Errorf("path source %s", e.PathSource)
			}
			if strings.Contains(string(e.Path)+string(e.PathGiven), "secret") {
				named += e.Times()
			}
		}
	}
	if n := r.numbers()[0][0] + 1; acts != n || named == 0 || alone != 1 {
		return fmt.Errorf("%d opens recorded, %d of them name the file, there were %d; %d by one thread alone", acts, named, n, alone)
	}
	return nil
}

// checkNameRace wants the names of what was removed where the kernel tells them,
// and no name that pretends to be the kernel's where it does not.
func checkNameRace(r *evidence) error {
	var removed strings.Builder
	source := trace.PathUser
	if len(r.events) > 0 && strings.Contains(r.events[0].Tier, "+fentry") {
		source = trace.PathKernel
	}
	for _, e := range r.find(trace.KindUnlink, nil) {
		if e.PathSource != source {
			return fmt.Errorf("path source %s, want %s", e.PathSource, source)
		}
		removed.WriteString(filepath.Base(string(e.Path)))
	}
	if n := removed.Len(); n != len(strings.TrimSpace(r.out)) || source == trace.PathKernel && removed.String() != strings.TrimSpace(r.out) {
		return fmt.Errorf("recorded %s, removed %s", removed.String(), r.out)
	}
	return nil
}

func checkReceived(r *evidence) error {
	n := r.numbers()[0]
	return want("receive", r.find(trace.KindReceive, func(e *trace.Event) bool {
		return string(e.Path) == r.in("secret") && uint64(e.FD) == n[0] && e.Ino == n[1] && e.Access == "r" && e.PathSource == trace.PathFDExit
	}))
}

func checkUnreadable(r *evidence) error {
	return errors.Join(
		want("an open without a path", r.find(trace.KindOpen, func(e *trace.Event) bool { return e.PathSource == trace.PathUnreadable && e.Errno == 14 })),
		want("userfaultfd", r.find(trace.KindDeny, refused("userfaultfd"))))
}

func checkConfusion(r *evidence) error {
	file := r.in("real/dir/file")
	given := func(s, access string) func(*trace.Event) bool {
		return func(e *trace.Event) bool {
			return string(e.Path) == file && string(e.PathGiven) == s && e.Access == access && e.Ino != 0
		}
	}
	return errors.Join(
		want("open by the link", r.find(trace.KindOpen, given("link/../dir/file", "r"))),
		want("open by the directory", r.find(trace.KindOpen, given("dir/./file", "w"))),
		want("unlink below the link's target", r.find(trace.KindUnlink, func(e *trace.Event) bool { return string(e.Path) == file && string(e.PathGiven) == "file" })))
}

func checkCopies(r *evidence) error {
	sum := r.events[len(r.events)-1]
	var files uint64
	for _, c := range sum.Counts {
		if c.Name == "bytes.files" {
			files = c.N
		}
	}
	if files < 300_000 || r.out != "200000\n" {
		return fmt.Errorf("%d bytes counted, copied %s", files, r.out)
	}
	return errors.Join(want("a", r.find(trace.KindCreate, at(r.in("a")))), want("b", r.find(trace.KindCreate, at(r.in("b")))))
}

func checkMmapWrite(r *evidence) error {
	return want("mmap_write", r.find(trace.KindMmapWrite, func(e *trace.Event) bool {
		return string(e.Path) == r.in("mapped") && e.PathSource == trace.PathKernel && e.Ino != 0
	}))
}

func checkInherited(r *evidence) error {
	fds := map[int32]bool{}
	for _, e := range r.find(trace.KindInherit, nil) {
		fds[e.FD] = true
	}
	if len(fds) != 3 || !fds[0] || !fds[1] || !fds[2] {
		return fmt.Errorf("descriptors %v", fds)
	}
	return nil
}

func checkMemfd(r *evidence) error {
	execs := r.find(trace.KindExec, func(e *trace.Event) bool {
		return e.Memfd && string(e.Path) == "memfd:kworker" && len(e.Argv) == 2 && string(e.Argv[1]) == "AGMARK"
	})
	if len(execs) != 1 {
		return fmt.Errorf("%d execs of a memfd", len(execs))
	}
	return r.ranMemory(execs[0].Ino, sumOfFile("/bin/true"))
}

func checkDeleted(r *evidence) error {
	execs := r.find(trace.KindExec, func(e *trace.Event) bool {
		return e.Deleted && string(e.Path) == r.in("prog") && e.Ino != 0
	})
	return errors.Join(want("exec of a deleted file", execs), hashed(execs, sumOfFile("/bin/true")))
}

func checkProcRoot(r *evidence) error {
	execs := r.find(trace.KindExec, func(e *trace.Event) bool {
		return string(e.Path) == "/usr/bin/id" && string(e.PathGiven) == "/proc/self/root/usr/bin/id"
	})
	return errors.Join(want("exec of id", execs), hashed(execs, sumOfFile("/usr/bin/id")))
}

func checkOtherNames(r *evidence) error {
	ino := r.numbers()[0][0]
	for _, name := range []string{"ls", "make"} {
		execs := r.find(trace.KindExec, func(e *trace.Event) bool { return string(e.Path) == r.in(name) && e.Ino == ino })
		if err := errors.Join(want(name, execs), hashed(execs, sumOfFile("/usr/bin/id"))); err != nil {
			return err
		}
	}
	return errors.Join(
		want("create", r.find(trace.KindCreate, func(e *trace.Event) bool { return e.Ino == ino })),
		want("link", r.find(trace.KindLink, func(e *trace.Event) bool { return string(e.To) == r.in("make") })),
		want("rename", r.find(trace.KindRename, func(e *trace.Event) bool { return string(e.Path) == r.in("git") && string(e.To) == r.in("ls") })))
}

func checkLoader(r *evidence) error {
	loader := r.find(trace.KindExec, func(e *trace.Event) bool { return len(e.Argv) == 2 && string(e.Argv[0]) == "ld.so" })
	return errors.Join(want("exec of the loader", loader), want("mmap_exec of the program", r.find(trace.KindMmapExec, at(r.in("hidden")))),
		r.ran(r.in("hidden"), sumOfFile("/bin/true")))
}

func checkShebang(r *evidence) error {
	return errors.Join(r.ran(r.in("outer"), sumOfFile(r.in("outer"))), r.ran(r.in("inner"), sumOfFile(r.in("inner"))), want("exec of the scripts", r.find(trace.KindExec, func(e *trace.Event) bool {
		return strings.HasSuffix(string(e.Script), "/outer") && string(e.Interp) == "/bin/sh" && !bytes.HasSuffix(e.Path, []byte("outer")) &&
			string(bytes.Join(e.Argv, []byte(" "))) == "/bin/sh "+r.in("inner")+" arg ./outer x"
	})))
}

func checkInline(r *evidence) error {
	return errors.Join(want("sh -c", r.find(trace.KindExec, argument(": AGMARK-sh"))), want("python -c", r.find(trace.KindExec, argument("# AGMARK-py"))),
		r.ran("", sumOfText("true && : AGMARK-sh")), r.ran("", sumOfText("pass # AGMARK-py")))
}

func checkPreload(r *evidence) error {
	if strings.Contains(r.raw, "AGSECRET") {
		return errors.New("a value of the environment is in the record")
	}
	return errors.Join(
		want("the names", r.find(trace.KindExec, func(e *trace.Event) bool { return string(bytes.Join(e.Env, []byte(" "))) == "LD_PRELOAD AGTOKEN" })),
		want("the library", r.find(trace.KindMmapExec, at(r.in("helper.so")))), r.ran(r.in("helper.so"), sumOfFile(r.in("helper.so"))))
}

func checkFloodedArgs(r *evidence) error {
	return errors.Join(
		want("the long argument", r.find(trace.KindExec, func(e *trace.Event) bool {
			return len(e.Argv) == 2 && len(e.Argv[1]) == 100_006 && bytes.HasSuffix(e.Argv[1], []byte("AGMARK")) && e.ArgvLen == 0
		})),
		want("the many arguments", r.find(trace.KindExec, func(e *trace.Event) bool {
			return e.Argc == 1502 && e.ArgvLen == uint64(len("/bin/true")+1+1500*1001+7) && len(e.Argv) > 100
		})))
}

func checkOddText(r *evidence) error {
	forged := "\n{\"v\":1,\"seq\":1,\"kind\":\"summary\"}\n"
	if n := strings.Count(r.raw, "\n"); n != len(r.events) {
		return fmt.Errorf("%d lines, %d records", n, len(r.events))
	}
	return errors.Join(
		want("no name", r.find(trace.KindExec, func(e *trace.Event) bool {
			return string(e.Path) == "/usr/bin/true" && len(e.Argv) == 1 && len(e.Argv[0]) == 0
		})),
		want("bytes", r.find(trace.KindExec, func(e *trace.Event) bool {
			return len(e.Argv) == 2 && string(e.Argv[0]) == "\xff\xfe\x1b[2J" && string(e.Argv[1]) == forged
		})),
		want("a file", r.find(trace.KindCreate, at(r.in(forged+"\x80")))))
}

func checkDeepPath(r *evidence) error {
	whole := len(r.dir) + 30*201 + len("/bottom")
	return want("the deep file", r.find(trace.KindCreate, func(e *trace.Event) bool {
		return bytes.HasSuffix(e.Path, []byte("d/bottom")) && int(e.PathLen) == whole && len(e.Path) > 3800 && e.Ino != 0
	}))
}

func checkSymlinkRace(r *evidence) error {
	counts := map[uint64]uint64{}
	for _, e := range r.find(trace.KindOpen, nil) {
		if e.Access == "r" {
			counts[e.Ino] += e.Times()
		}
	}
	for _, row := range r.numbers() {
		if counts[row[0]] != row[1] {
			return fmt.Errorf("inode %d was opened %d times, recorded %d", row[0], row[1], counts[row[0]])
		}
	}
	return nil
}

func checkNameTricks(r *evidence) error {
	return errors.Join(
		want("O_TMPFILE", r.find(trace.KindCreate, func(e *trace.Event) bool { return e.Flags&0o20000000 != 0 && e.Ino != 0 })),
		want("linkat", r.find(trace.KindLink, func(e *trace.Event) bool { return string(e.To) == r.in("appeared") })),
		want("exchange", r.find(trace.KindRename, func(e *trace.Event) bool {
			return e.Flags == 2 && string(e.Path) == r.in("left") && string(e.To) == r.in("right")
		})))
}

// checkFamilies follows every process from its birth to its end by identity alone.
func checkFamilies(r *evidence) error {
	born := map[string]bool{}
	for i := range r.events {
		e := &r.events[i]
		if e.Kind == trace.KindFork && e.Child.Pid != e.Proc.Pid {
			born[e.Child.ID()] = true
		}
		if e.Kind == trace.KindExit {
			if !born[e.Proc.ID()] && e.Phase == trace.PhaseCommand {
				return fmt.Errorf("%s was never born", e.Proc.ID())
			}
			delete(born, e.Proc.ID())
		}
	}
	marked := r.find(trace.KindExec, argument("AGMARK"))
	if len(marked) != 5 {
		return fmt.Errorf("%d of 5 grandchildren", len(marked))
	}
	return errors.Join(want("unshare", r.find(trace.KindDeny, refused("unshare"))),
		want("a parent of its own", r.find(trace.KindExec, func(e *trace.Event) bool { return e.Proc.PStart != 0 })))
}

func checkShortLives(r *evidence) error {
	ids := map[string]bool{}
	for _, e := range r.find(trace.KindExit, nil) {
		ids[e.Proc.ID()] = true
	}
	if forks := len(r.find(trace.KindFork, nil)); forks != 300 || len(ids) != 301 {
		return fmt.Errorf("%d forks, %d ends", forks, len(ids))
	}
	return nil
}

func checkFlood(r *evidence) error {
	var acts uint64
	for _, e := range r.find(trace.KindOpen, func(e *trace.Event) bool { return bytes.HasPrefix(e.Path, []byte("/nowhere/")) }) {
		acts += e.Times()
	}
	var lost uint64
	for _, e := range r.events {
		lost += e.Loss.Count
	}
	if acts+lost < 40_000 {
		return fmt.Errorf("%d opens recorded, %d lost, of 40000", acts, lost)
	}
	return want("the needle", r.find(trace.KindExec, argument("AGNEEDLE")))
}

func checkDelegation(r *evidence) error {
	to := func(path string) func(*trace.Event) bool {
		return func(e *trace.Event) bool { return e.Family == "unix" && string(e.Path) == path }
	}
	hook := r.in(".git/hooks/post-checkout")
	return errors.Join(
		want("docker", r.find(trace.KindConnect, to("/run/docker.sock"))), want("dbus", r.find(trace.KindConnect, to("/run/dbus/system_bus_socket"))),
		want("X", r.find(trace.KindConnect, to("\x00/tmp/.X11-unix/X0"))),
		want("the hook", r.find(trace.KindCreate, at(hook))), want("its mode", r.find(trace.KindChmod, func(e *trace.Event) bool { return string(e.Path) == hook && e.Mode == 0o755 })))
}
