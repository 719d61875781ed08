package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// states are those of the user's processes of a name, a letter each (proc_pid_status(5)).
func (l *loner) states(name string) string {
	var out strings.Builder
	for _, p := range l.processes() {
		pid, has, _ := strings.Cut(p, " ")
		b, err := os.ReadFile("/proc/" + pid + "/status")
		_, after, found := strings.Cut(string(b), "\nState:\t")
		if err == nil && found && has == name {
			out.WriteByte(after[0])
		}
	}
	return out.String()
}

// Without a freezer Ctrl-Z stops all of the run, one process after the other, and
// fg lets those go on that it has stopped. (One whose execve waits for its answer meanwhile
// is not stopped, and does not go on either.)
func TestUserNSStop(t *testing.T) {
	l := alone(t)
	write(t, filepath.Join(l.work, "stops"), "dash -c '>/tmp/runs; while :; do :; done' & while [ ! -e /tmp/runs ]; do :; done; echo one; kill -STOP $$; echo two; kill $!; wait; echo three")
	p := sit(t, l.work, noRedirect, "sh", "-c", fmt.Sprintf("chown %[1]d $(tty); exec setpriv --reuid %[1]d --regid %[2]d --clear-groups env HOME=%[3]s AGENTGUARD_SOCKET=none bash --norc -i",
		l.uid(), lonerGID, l.home))
	p.answers("P> ", agentguard()+" exec -q --mode ro -- sh stops\n", "one", "", "Stopped", "echo back-$((1+1))\n", "back-2", "")
	l.until("the run's other process is stopped", func() bool { return l.states("dash") == "T" }) // once it is its turn on a CPU
	p.answers("P> ", "fg\n", "two", "", "three", "", "P> ", "exit\n")
	p.wait()
}
