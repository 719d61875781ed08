package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// On a terminal the command has one of its own, of the host's: what it prints is filtered, it types
// nothing for anybody, the caller's is out of its reach, and Ctrl-Z and fg work as for any job.
func TestLandlockTerminal(t *testing.T) {
	c := corner(t, "filter")
	c.script("try.sh", `[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all-three
echo by-name >/dev/tty
python3 -c 'import fcntl, termios
for call in termios.TIOCSTI, 0x541c:
  try: fcntl.ioctl(0, call, b"x"); print("typed")
  except OSError as e: print("refused", e.errno)'
(exec 3<>"$1") 2>/dev/null && echo reached
printf '\033]0;evil\007shown\n'
stty size
kill -STOP $$; echo again
`)
	p := sit(t, c.work, noRedirect, "sh", "-c", fmt.Sprintf("chown %[1]d $(tty); exec setpriv --reuid %[1]d --regid %[2]d --clear-groups env HOME=%[3]s AGENTGUARD_SOCKET=none %[4]s confined filter /bin/bash --norc -i",
		c.uid(), lonerGID, c.home, filepath.Join(programs(), "probe")))
	p.answers("P> ", agentguard()+" exec -q --allow-gap landlock --mode rw -- sh try.sh $(tty)\n", "all-three", "", "by-name", "", "refused 1", "", "refused 1", "", "shown", "", "24 80", "",
		"Stopped", "echo back-$((1+1))\n", "back-2", "", "P> ", "fg\n", "again", "", "P> ", agentguard()+" exec -q --allow-gap landlock --tty always -- bash --norc -i\n",
		"$ ", "echo out-$((1+1)); exit\n", "out-2", "", "P> ", "exit\n")
	p.wait()
	if all := p.all(); strings.Contains(all, "evil") || strings.Contains(all, "reached") || strings.Contains(all, "typed") {
		t.Errorf("%q", all)
	}
}
