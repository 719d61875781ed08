package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// observers are those that look at a load; the programs are "" where they are
// not to be had.
type observers struct {
	agentguard, strace, bpftrace string
	throttle                     bool // a row more
}

// straceCalls is what strace records: about the kinds of events that a record has.
const straceCalls = "trace=%process,%file,%network"

// bpftraceProgram does likewise. It sees the whole machine, as bpftrace's own
// tools do (opensnoop, execsnoop).
const bpftraceProgram = `
tracepoint:syscalls:sys_enter_open, tracepoint:syscalls:sys_enter_openat { @name[tid] = args->filename; @flags[tid] = args->flags; }
tracepoint:syscalls:sys_exit_open, tracepoint:syscalls:sys_exit_openat /@name[tid]/ {
	printf("open %d %s %d %d\n", pid, str(@name[tid]), @flags[tid], args->ret); delete(@name[tid]); delete(@flags[tid]); }
tracepoint:syscalls:sys_enter_execve { printf("exec %d %s ", pid, str(args->filename)); join(args->argv); }
tracepoint:sched:sched_process_fork { printf("fork %d %d\n", args->parent_pid, args->child_pid); }
tracepoint:sched:sched_process_exit { printf("exit %d\n", args->pid); }
tracepoint:syscalls:sys_enter_unlink { printf("unlink %d %s\n", pid, str(args->pathname)); }
tracepoint:syscalls:sys_enter_unlinkat { printf("unlink %d %s\n", pid, str(args->pathname)); }
tracepoint:syscalls:sys_enter_rename, tracepoint:syscalls:sys_enter_renameat, tracepoint:syscalls:sys_enter_renameat2 {
	printf("rename %d %s %s\n", pid, str(args->oldname), str(args->newname)); }
tracepoint:syscalls:sys_enter_mkdir { printf("mkdir %d %s\n", pid, str(args->pathname)); }
tracepoint:syscalls:sys_enter_connect { printf("connect %d %d\n", pid, args->fd); }`

// find looks for the programs, and tries bpftrace, which may be there and not
// fit the kernel.
func (o *observers) find(strace, bpftrace string) {
	var err error
	if o.strace, err = exec.LookPath(strace); err != nil {
		fmt.Fprintf(os.Stderr, "record: no strace here (%v): its row is left out\n", err)
	}
	o.bpftrace, err = exec.LookPath(bpftrace)
	if err == nil {
		var out []byte
		if out, err = exec.Command(o.bpftrace, "-q", "-o", os.DevNull, "-c", "/bin/true", "-e", bpftraceProgram).CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %.200s", err, out)
		}
	}
	if err != nil {
		o.bpftrace = ""
		fmt.Fprintf(os.Stderr, "record: no bpftrace here that works (%v): its row is left out\n", err)
	}
}

// rows are the contestants for one load; the first is the reference.
func (o *observers) rows(l *load, dir string) ([]*row, error) {
	work := filepath.Join(dir, "work")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return nil, err
	}
	script := filepath.Join(dir, "script") // bpftrace splits its command at blanks
	if err := os.WriteFile(script, []byte(l.script), 0o644); err != nil {
		return nil, err
	}
	shell := []string{"/bin/sh", "-ec", l.script}
	rows := []*row{
		{name: "native", argv: shell},
		{name: "agentguard", argv: o.sandbox(dir, shell)},
		{name: "agentguard --trace changes", argv: o.sandbox(dir, shell, "--trace", "changes")},
	}
	if o.throttle {
		rows = append(rows, &row{name: "agentguard --on-loss throttle", argv: o.sandbox(dir, shell, "--on-loss", "throttle")})
	}
	if o.strace != "" {
		argv := append([]string{o.strace, "-f", "--seccomp-bpf", "-qq", "-e", straceCalls, "-o", filepath.Join(dir, "strace.out")}, shell...)
		rows = append(rows, &row{name: "strace -f --seccomp-bpf", argv: argv})
	}
	if o.bpftrace != "" {
		argv := []string{o.bpftrace, "-q", "-o", filepath.Join(dir, "bpftrace.out"), "-c", "/bin/sh -e " + script, "-e", bpftraceProgram}
		// It complains of every limit that it cannot raise; find has shown that it works.
		rows = append(rows, &row{name: "bpftrace", argv: argv, mute: true})
	}
	for _, r := range rows {
		r.work = work
	}
	return rows, nil
}

// sandbox is a command under agentguard, with dir/work as its writable workspace.
func (o *observers) sandbox(dir string, command []string, flags ...string) []string {
	argv := []string{o.agentguard, "exec", "-q", "--state", filepath.Join(dir, "state"), "-w", filepath.Join(dir, "work"), "--mode", "rw"}
	return append(append(append(argv, flags...), "--"), command...)
}
