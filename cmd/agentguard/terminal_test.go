package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/testenv"
)

var noRedirect [3]*os.File

// The programs that people use on a terminal, as they use them.
func TestTerminalPrograms(t *testing.T) {
	testenv.Root(t)
	for _, c := range []struct {
		name string
		argv []string
		talk []string // shown, typed
		file string   // content of the file "file" afterwards
	}{
		{"vim", []string{"vim", "-u", "NONE", "file"}, []string{"\x1b[?1049h", "", "file", "ohéllo → 世界\x1b:wq\r"}, "first\nhéllo → 世界\n"},
		{"less", []string{"less", "long"}, []string{"\x1b[?1049h", "", "line 1\r\n", "G", "line 500", "q"}, "first\n"},
		{"top", []string{"top"}, []string{"PID", "q"}, "first\n"},
		{"an editor in a shell", []string{"sh", "-c", "vim -u NONE file; echo after"}, []string{"\x1b[?1049h", "", "file", "iX\x1b:wq\r", "after", ""}, "Xfirst\n"},
		{"cat as a line editor", []string{"sh", "-c", "cat >file"}, []string{"", "wrong\x15rught\x7f\x7f\x7f\x7fight\n\x04"}, "right\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := exec.LookPath(c.argv[0]); err != nil {
				testenv.Missing(t, c.argv[0], err.Error())
			}
			dir := t.TempDir()
			lines := ""
			for i := range 500 {
				lines += fmt.Sprintf("line %d\n", i+1)
			}
			write(t, filepath.Join(dir, "file"), "first\n")
			write(t, filepath.Join(dir, "long"), lines)
			p := sit(t, dir, noRedirect, guarded("-q --mode rw", c.argv...)...)
			p.until("raw mode", p.raw)
			p.answers(c.talk...)
			after := func() bool { return p.settings() == p.before }
			p.until("line mode again", after)
			if status := p.wait(); status != 0 {
				t.Errorf("status %d: %q", status, p.all())
			}
			if got, _ := os.ReadFile(filepath.Join(dir, "file")); string(got) != c.file {
				t.Errorf("the file is %q, want %q", got, c.file)
			}
			for _, mode := range []string{"1049", "2004", "1006", "1"} {
				if s := p.all(); strings.LastIndex(s, "\x1b[?"+mode+"h") > strings.LastIndex(s, "\x1b[?"+mode+"l") {
					t.Errorf("mode %s stays: %q", mode, s)
				}
			}
		})
	}
}

// A shell inside has its jobs.
func TestTerminalJobs(t *testing.T) {
	testenv.Root(t)
	p := sit(t, t.TempDir(), noRedirect, guarded("-q", "bash", "--norc", "-i")...)
	// A job of one process: a vfork(2) that Ctrl-Z meets keeps its parent from stopping.
	p.answers(
		"$ ", "PS1='I> '; tty; ps -o tty= -p $$\n", "/dev/pts/0", "", "pts/0", "",
		"I> ", "sh -c 'echo runs; while :; do :; done'\n", "runs\r\n", "\x1a",
		"Stopped", "bg\n", "&", "jobs\n", "Running", "kill -0 %1 && fg\n", "done'\r\n", "")
	p.insist("\x03", "I> ")
	p.answers("", "echo status $?; cat </dev/tty\n", "status 130\r\n", "typed\n", "typed\r\ntyped\r\n", "\x04",
		"I> ", "exit 7\n")
	if status := p.wait(); status != 7 {
		t.Errorf("status %d: %q", status, p.all())
	}
}

// Ctrl-C is the command's.
func TestTerminalInterrupt(t *testing.T) {
	testenv.Root(t)
	p := sit(t, t.TempDir(), noRedirect, guarded("-q", "sh", "-c", "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.05; done")...)
	p.answers("ready", "\x03", "caught", "")
	if status := p.wait(); status != 3 {
		t.Errorf("status %d: %q", status, p.all())
	}
}

// Ctrl-Z at the command itself stops agentguard for the shell that it was started
// from, which has its terminal back; fg goes on where it was.
func TestTerminalStop(t *testing.T) {
	testenv.Root(t)
	dir := t.TempDir()
	p := sit(t, dir, noRedirect, "bash", "--norc", "-i")
	ag := strings.Join(guarded("-q --mode rw"), " ")
	// What is expected is in none of the lines that are typed, which are shown as well.
	write(t, filepath.Join(dir, "stops"), "echo one; kill -STOP $$; echo two")
	write(t, filepath.Join(dir, "outer"), ag+" sh stops; echo three")
	write(t, filepath.Join(dir, "asks"), "echo ask; kill -STOP $$; echo goes-on; read x; echo got $x")
	vim := fmt.Sprintf("vim -u NONE file%d", os.Getpid()) // ours, whatever else is edited on this machine
	frozen := "cat /sys/fs/cgroup{,/unified}$(sed -n s/^0:://p /proc/$(pgrep -f '^" + vim + "$')/cgroup)/cgroup.freeze 2>/dev/null"
	p.answers("P> ", "stty -a >before; "+ag+" "+vim+"\n", "\x1b[?1049h", "", "file", "iX\x1b\x1a",
		"\x1b[?1049l", "", "Stopped", "stty -a >stopped; "+frozen+" >frozen; fg\n", "\x1b[?1049h", "", "X", ":wq\r",
		"P> ", "echo status $?; stty -a >after\n", "status 0", "",
		// What a shell without jobs runs stops with it.
		"P> ", "sh outer\n", "one", "", "Stopped", "echo between-$((1+1)); fg\n", "between-2", "", "two", "", "three", "",
		// In the background it goes on without the terminal, and is brought back.
		"P> ", ag+" sh asks\n", "ask\r\n", "",
		"Stopped", "bg\n", "goes-on", "echo shell-$((1+2))\n", "shell-3\r\n", "fg\n", "sh asks\r\n", "")
	p.until("raw mode", p.raw)
	p.keys("this\n")
	p.answers("got this", "", "P> ", "exit\n")
	p.wait()
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	if b := read("before"); b != read("stopped") || b != read("after") || b == "" {
		t.Errorf("the shell's terminal before, stopped and after:\n%s%s%s", b, read("stopped"), read("after"))
	}
	if f := vim[len("vim -u NONE "):]; read(f) != "X\n" || read("frozen") != "1\n" {
		t.Errorf("file %q, frozen %q", read(f), read("frozen"))
	}
}

// A run that is killed while it is stopped is dead, and leaves nothing.
func TestTerminalKilledWhileStopped(t *testing.T) {
	testenv.Root(t)
	before := held()
	p := sit(t, t.TempDir(), noRedirect, "bash", "--norc", "-i")
	mark := fmt.Sprintf("3153600.%d", os.Getpid())
	p.answers("P> ", strings.Join(guarded("-q"), " ")+" sh -c 'sleep "+mark+" & kill -STOP $$'\n", "Stopped", "kill -9 %1; wait; echo gone\n", "gone\r\n", "")
	p.until("the run's end", func() bool { return exec.Command("pgrep", "-f", "sleep "+mark+"$").Run() != nil })
	p.answers("P> ", "exit\nexit\n") // it may not have seen the death yet, and warn
	p.wait()
	p.until("the dead run is swept up", func() bool { // once the kernel has let go of it
		if out, err := exec.Command(agentguard(), guarded("-q", "true")[1:]...).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return len(leftovers(0, before)) == 0
	})
}

func TestTerminalResize(t *testing.T) {
	testenv.Root(t)
	p := sit(t, t.TempDir(), noRedirect, guarded("-q", "bash", "-c", "trap 'stty size' WINCH; stty size; until read -t 0.1 x; do :; done; echo end")...)
	p.expect("24 80")
	if err := p.pty.Resize(&unix.Winsize{Row: 50, Col: 132}); err != nil {
		t.Fatal(err)
	}
	p.answers("50 132", "x\n", "end", "")
	p.wait()
}

// 50 MB reach the terminal; the record keeps what it is allowed to.
func TestTerminalFlood(t *testing.T) {
	testenv.Root(t)
	dir := t.TempDir()
	p := sit(t, dir, noRedirect, guarded("-q --json "+dir+"/result", "sh", "-c", `head -c 50000000 /dev/zero | tr "\0" x; echo END`)...)
	p.expect("END")
	if status := p.wait(); status != 0 {
		t.Errorf("status %d", status)
	}
	if n := strings.Count(p.all(), "x"); n != 50e6 {
		t.Errorf("%d bytes were shown", n)
	}
	res := result(t, filepath.Join(dir, "result"))
	if o := res.Stdout; o.Bytes != 50e6+5 || o.Kept != 16<<20 || !o.Truncated {
		t.Errorf("%+v", o)
	}
}

// What the output does to the terminal's input, title, clipboard or printer, or
// asks of it, does not arrive; nor does anything that is typed into the caller's
// terminal from within.
func TestTerminalAttacks(t *testing.T) {
	testenv.Root(t)
	attacks := []string{
		"\x1b]52;c;ZWNobyBwd25lZA==\a", "\x1b]0;owned\a", "\x1b[21t", "\x1b[20t", "\x1b[22;0t", "\x1b[c", "\x1b[>c", "\x1b[=c", "\x1bZ", "\x05",
		"\x1b[5n", "\x1b[6n", "\x1b[?6n", "\x1bP$qm\x1b\\", "\x1bP+q544e\x1b\\", "\x1b[?2004$p", "\x1b[x", "\x1b[?1004h", "\x1b[>q", "\x1b[?u",
		"\x1b]10;?\a", "\x1b]4;1;?\a", "\x1b]1337;File=name=eA==:eA==\a", "\x1b]777;notify;a;b\a", "\x1b]8;;file:///etc/passwd\a", "\x1b_Gi=1;eA==\x1b\\",
		"\x1b[5i", "\x1b[4i", "\x1b[2h", "\x1b[20h", "\x1b[3J", "\x1bc", "\x1b%@", "\x9b6n", "\xc2\x9b6n", "\xc2\x9d52;c;eA==\x07", "\x1bPtmux;\x1b\x1b]52;c;eA==\a\x1b\\",
		"\x1b[>1u", "\x1b[>4;2m", "\x1b[?69h", "\x1b[1;1;1;1;1;1*y",
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "attacks"), strings.Join(attacks, "\n")+"\nEND\n")
	p := sit(t, dir, noRedirect, guarded("-q", "cat", "attacks")...)
	p.expect("END")
	if status := p.wait(); status != 0 {
		t.Errorf("status %d", status)
	}
	if bad := regexp.MustCompile(`[\x00-\x06\x0e-\x1f\x7f\x{80}-\x{9f}]`).FindString(p.all()); bad != "" || !utf8.ValidString(p.all()) {
		t.Errorf("%q came through: %q", bad, p.all())
	}
	write(t, filepath.Join(dir, "raw.yaml"), "sandbox: {output: {terminal: raw}}\n")
	raw := sit(t, dir, noRedirect, guarded("-q -p raw.yaml -w .", "cat", "attacks")...)
	raw.expect("END")
	raw.wait()
	if !strings.Contains(raw.all(), attacks[0]) {
		t.Errorf("output.terminal raw: %q", raw.all())
	}
}

// A program that asks who the terminal is has an answer, which is agentguard's. Where a
// line is being typed there is none, and one that nobody reads holds up nothing.
func TestTerminalAnswers(t *testing.T) {
	testenv.Root(t)
	const ask = `
import os, sys, termios, tty
old = termios.tcgetattr(0)
sys.stdout.write("\x1b[casked\n"); sys.stdout.flush()
print("line:", sys.stdin.readline().encode())
tty.setraw(0)
os.write(1, b"\x1b[?u\x1b[0c\x1b[5n")
got = b""
while not got.endswith(b"n"):
    got += os.read(0, 100)
os.write(1, b"\x1b[c" * 200000 + b"flood\r\n")
termios.tcsetattr(0, termios.TCSAFLUSH, old)
print("got", got, "end")
`
	dir := t.TempDir()
	write(t, filepath.Join(dir, "ask.py"), ask)
	p := sit(t, dir, noRedirect, guarded("-q", "/usr/bin/python3", "ask.py")...)
	p.answers("asked", "typed\n") // what is shown by now was judged while a line was being typed
	p.expect(`line: b'typed\n'`)
	p.expect("flood")
	p.expect(`got b'\x1b[?1;2c\x1b[0n' end`)
	if status := p.wait(); status != 0 || strings.Contains(p.all(), "\x1b[") {
		t.Errorf("status %d, shown %q", status, p.all())
	}
}

// Typing into a terminal from within is refused, on whichever terminal.
func TestTerminalInjection(t *testing.T) {
	testenv.Root(t)
	const script = `
import fcntl, os, sys, termios
for name in ["/dev/tty", "/dev/pts/0"]:
    fd = os.open(name, os.O_RDWR)
    for what, call in [("TIOCSTI", termios.TIOCSTI), ("TIOCLINUX", 0x541c), ("TIOCSETD", termios.TIOCSETD)]:
        try:
            fcntl.ioctl(fd, call, b"x\0\0\0")
            print(what, "let through")
        except OSError as e:
            print(what, e.errno)
print("done")
`
	dir := t.TempDir()
	write(t, filepath.Join(dir, "inject.py"), script)
	p := sit(t, dir, noRedirect, guarded("-q", "/usr/bin/python3", "inject.py")...)
	p.expect("done")
	p.wait()
	if n := strings.Count(p.all(), " 1\r\n"); n != 6 {
		t.Errorf("%d of 6 are refused with EPERM: %q", n, p.all())
	}
}

// The terminal is what it was, however the run ends.
func TestTerminalRestored(t *testing.T) {
	testenv.Root(t)
	const on, off = `\033[?1049h\033[?25l\033[?1000h\033[?2004h\033[1;31m`, "\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?2004l\x1b[m"
	for name, end := range map[string]func(*person) error{
		"the command ends":        func(p *person) error { p.keys("x"); return nil },
		"the supervisor: SIGKILL": func(p *person) error { return p.cmd.Process.Kill() },
		"its group: SIGKILL":      func(p *person) error { return unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL) },
		"SIGTERM":                 func(p *person) error { return p.cmd.Process.Signal(unix.SIGTERM) },
		"SIGHUP":                  func(p *person) error { return p.cmd.Process.Signal(unix.SIGHUP) },
		"SIGSEGV":                 func(p *person) error { return p.cmd.Process.Signal(unix.SIGSEGV) }, // a panic of Go's runtime
	} {
		t.Run(name, func(t *testing.T) {
			p := sit(t, t.TempDir(), noRedirect, guarded("-q", "bash", "-c", "printf '"+on+"'; echo on; read -n 1")...)
			p.expect("on\r\n")
			p.until("raw mode", p.raw)
			if err := end(p); err != nil {
				t.Fatal(err)
			}
			p.expect(off)
			p.until("line mode", func() bool { return p.settings() == p.before })
			p.wait()
		})
	}
}

// Keys that were typed for the command do not answer a question of ours; what is
// typed after it does.
func TestTerminalAsk(t *testing.T) {
	testenv.Root(t)
	for _, flags := range []string{"", "--commit ask", "--tty never", "--tty never --commit ask"} {
		for answer, want := range map[string]bool{"y\n": true, "n\n": false, "\n": false} {
			dir := t.TempDir()
			p := sit(t, dir, noRedirect, guarded(flags, "sh", "-c", "echo x >new; echo y; read a; echo heard $a")...)
			p.answers("y\r\n", "y\ny\ny\n", "heard y", "", "commit them? [y/N] ", answer)
			if status := p.wait(); status != 0 {
				t.Errorf("%q: status %d: %q", flags, status, p.all())
			}
			if _, err := os.Stat(filepath.Join(dir, "new")); (err == nil) != want {
				t.Errorf("%q, answer %q: committed %v: %q", flags, answer, err == nil, p.all())
			}
		}
	}
}

// Streams that are no terminal stay what they are.
func TestTerminalMixed(t *testing.T) {
	testenv.Root(t)
	const look = `for i in 0 1 2; do test -t $i && printf "$i:tty " || printf "$i:no "; done`
	for _, c := range []struct {
		name, flags string
		redirect    [3]bool
		want        string
		status      int
	}{
		{"all", "", [3]bool{}, "0:tty 1:tty 2:tty", 0},
		{"stderr is a file", "", [3]bool{2: true}, "0:tty 1:tty 2:no", 0},
		{"stdout is a file", "", [3]bool{1: true}, "0:no 1:no 2:no", 0},
		{"stdout is a file, always", "--tty always", [3]bool{1: true}, "0:tty 1:no 2:tty", 0},
		{"stdin is a file", "", [3]bool{0: true}, "0:no 1:no 2:no", 0},
		{"stdin is a file, always", "--tty always", [3]bool{0: true}, "", 125},
		{"never", "--tty never", [3]bool{}, "0:no 1:no 2:no", 0},
		{"no such word", "--tty perhaps", [3]bool{}, "", 125},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			f, err := os.Create(filepath.Join(dir, "stream"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			var redirect [3]*os.File
			for i, r := range c.redirect {
				if r {
					redirect[i] = f
				}
			}
			p := sit(t, dir, redirect, guarded("-q "+c.flags, "sh", "-c", look)...)
			if status := p.wait(); status != c.status {
				t.Errorf("status %d, want %d", status, c.status)
			}
			written, _ := os.ReadFile(f.Name())
			if got := p.all() + string(written); !strings.Contains(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func result(t *testing.T, name string) *runs.Result {
	t.Helper()
	b, err := os.ReadFile(name)
	res := &runs.Result{}
	if err == nil {
		err = json.Unmarshal(b, res)
	}
	if err != nil {
		t.Fatal(err)
	}
	return res
}
