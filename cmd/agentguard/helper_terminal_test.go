package main

import (
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A client's terminal is what it was, however the client ends; the run ends with it.
func TestHelperTerminalRestored(t *testing.T) {
	s := serveUsers(t)
	const on, off = `\033[?1049h\033[?25l\033[?2004h\033[1;31m`, "\x1b[?1049l\x1b[?25h\x1b[?2004l\x1b[m"
	for name, end := range map[string]func(*person) error{
		"the command ends":   func(p *person) error { p.keys("x"); return nil },
		"SIGKILL":            func(p *person) error { return p.cmd.Process.Kill() },
		"its group: SIGKILL": func(p *person) error { return unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL) },
		"SIGTERM":            func(p *person) error { return p.cmd.Process.Signal(unix.SIGTERM) },
		"SIGSEGV":            func(p *person) error { return p.cmd.Process.Signal(unix.SIGSEGV) }, // a panic of Go's runtime
	} {
		t.Run(name, func(t *testing.T) {
			p := sit(t, s.home, noRedirect, "/usr/bin/env", "AGENTGUARD_SOCKET="+s.socket,
				"setpriv", "--reuid="+strconv.Itoa(ann), "--regid="+strconv.Itoa(ann), "--clear-groups",
				agentguard(), "exec", "-q", "--", "bash", "-c", "printf '"+on+"'; echo on; read -n 1")
			p.expect("on\r\n")
			p.until("raw mode", p.raw)
			if err := end(p); err != nil {
				t.Fatal(err)
			}
			p.expect(off)
			p.until("line mode", func() bool { return p.settings() == p.before })
			p.wait()
			s.until("the run has ended", s.spare)
		})
	}
}
