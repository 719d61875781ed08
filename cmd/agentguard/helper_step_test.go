package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// traced makes a command of ann's that runs agentguard under strace, with a change to its calls.
func (s *service) traced(inject string, args ...string) *exec.Cmd {
	s.t.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		testenv.Missing(s.t, "strace", err.Error())
	}
	return s.as(ann, append([]string{"strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=" + inject, agentguard()}, args...)...)
}

// A client that is killed at any call by which it talks to the helper ends its request,
// whether that is a run, of which the command would go on for ever, or another.
func TestHelperKilledAtEachCall(t *testing.T) {
	s := serveUsers(t)
	killed := 0
	for _, request := range [][]string{{"exec", "-q", "--", "sleep", "1000000.5"}, {"commit"}, {"runs", "ls"}} {
		if request[0] == "commit" {
			if _, errs, status := s.guard(ann, "exec", "-q", "--", "touch", "made"); status != 0 {
				t.Fatal(errs)
			}
		}
		for _, call := range []string{"socket", "connect", "getsockopt", "sendmsg", "recvmsg"} {
			cmd := s.traced(call+":signal=SIGKILL:when=1", request...)
			out, errs, status := s.finish(cmd)
			if status != -1 {
				t.Errorf("%v was not killed at %s: %d %q %q", request, call, status, out, errs)
				continue
			}
			killed++
			s.until(fmt.Sprintf("%v, killed at %s, has ended", request, call), s.spare)
		}
	}
	if killed != 15 {
		t.Errorf("%d of 15 clients were killed", killed)
	}
	if _, errs, status := s.guard(ann, "commit"); status != 0 && !strings.Contains(errs, "committed") {
		t.Errorf("after a commit without its client: %d %q", status, errs)
	}
	if !exists(filepath.Join(s.home, "made")) {
		t.Error("what was staged is neither committed nor kept")
	}
	s.works()
}

// Who traces the client, its own user, makes it say what he likes: that it is root, or
// somebody else, is not asked of it.
func TestHelperTracedClient(t *testing.T) {
	s := serveUsers(t)
	for _, id := range []int{0, bob} {
		inject := fmt.Sprintf("getuid,geteuid,getgid,getegid:retval=%d", id)
		out, errs, status := s.finish(s.traced(inject, "exec", "-q", "--", "id", "-u"))
		if out != strconv.Itoa(ann)+"\n" && (out != "" || status == 0) {
			t.Errorf("a client that takes itself for %d: %d %q %q", id, status, out, errs)
		}
		out, errs, status = s.finish(s.traced(inject, "runs", "kill", "last"))
		if status == 0 {
			t.Errorf("runs kill of a client that takes itself for %d: %q %q", id, out, errs)
		}
	}
	s.works()
}

// reborn makes a process of the user with the number of one that has ended (clone3's set_tid),
// which lives until its stdin ends.
const reborn = `
import ctypes, os, signal, struct, sys
tid = (ctypes.c_int * 1)(int(sys.argv[1]))
args = struct.pack("<11Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(tid), 1, 0)
libc = ctypes.CDLL(None, use_errno=True)
pid = libc.syscall(435, args, len(args))
if pid < 0:
    sys.exit("clone3: " + os.strerror(ctypes.get_errno()))
if pid == 0:
    os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
    print("born", flush=True)
    sys.stdin.read()
    os._exit(0)
os.waitpid(pid, 0)
`

// A connection waits to be accepted; who made it has ended, and its number is another
// process's, of another user or of the same. It is nobody's request.
func TestHelperPIDReused(t *testing.T) {
	for _, heir := range []int{bob, ann} {
		t.Run(strconv.Itoa(heir), func(t *testing.T) {
			s := serveUsers(t)
			if err := s.cmd.Process.Signal(unix.SIGSTOP); err != nil { // the connection is not accepted yet
				t.Fatal(err)
			}
			defer func() { _ = s.cmd.Process.Signal(unix.SIGCONT) }()
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			cmd := s.as(ann, "/proc/self/exe")
			cmd.Env = append(cmd.Env, attackVar+"=handed-on", "GO="+s.home+"/go")
			cmd.Stdout, cmd.Stderr = w, w
			err = cmd.Run()
			w.Close()
			if err != nil {
				t.Fatal(err)
			}
			end := takeNumber(t, cmd.Process.Pid, heir)
			defer end()
			if err := errors.Join(s.cmd.Process.Signal(unix.SIGCONT), os.WriteFile(s.home+"/go", nil, 0o644)); err != nil {
				t.Fatal(err)
			}
			if out, err := io.ReadAll(r); err != nil || len(out) != 0 { // until the heir of the connection has ended
				t.Errorf("%v: %s", err, out)
			}
			s.until("it is refused for that reason", func() bool { return strings.Contains(s.said.String(), "it has ended") })
			s.works()
		})
	}
}

// takeNumber makes a process of that number and that user, and returns how to end it.
func takeNumber(t *testing.T, pid, uid int) func() {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		testenv.Missing(t, "python3", err.Error())
	}
	cmd := exec.Command("python3", "-c", reborn, strconv.Itoa(pid), strconv.Itoa(uid))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said lockedBuffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "born\n" {
		_ = in.Close()
		_ = cmd.Wait()
		t.Fatalf("no process of number %d: %v %s", pid, err, said.String())
	}
	return func() { _ = in.Close(); _ = cmd.Wait() }
}

// awaitGo waits for the file that GO names, where it names one.
func awaitGo() {
	path := os.Getenv("GO")
	for end := time.Now().Add(patience); path != "" && !exists(path) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}
