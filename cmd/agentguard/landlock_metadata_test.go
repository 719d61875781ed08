package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/trace"
)

// What tools do by path works where the command may write, without that all of the user's files
// be opened up for it.
func TestLandlockTools(t *testing.T) {
	c := corner(t, "filter")
	out, errs, status := c.inside("--mode", "rw", "--", "sh", "-ec", `printf '#!/bin/sh\necho ran\n' >s; chmod +x s; ./s
install -m 750 s t; ./t; cp -p s u; ./u; touch -d 2001-02-03 u; chmod 600 "$HOME" "$TMPDIR"; chmod 700 "$HOME" "$TMPDIR"
mkdir -p a/b; : >a/b/f; python3 -c 'import os; os.rename("a/b", "e"); os.rename("e/f", "a/f"); os.link("a/f", "e/f")'; cp -a e g; ls g
mkdir d; tar cf d.tar s d; mkdir x; tar xpf d.tar -C x; x/s
ln -s s l; touch -h -d 2001-02-03 l; chmod 711 l; stat -c '%a %Y' s t u l | tr '\n' ' '
python3 -c 'import os; os.chown("s", -1, os.getgid()); os.setxattr("s", "user.k", b"v"); print(os.getxattr("s", "user.k"))'`)
	if status != 0 || !strings.HasPrefix(out, "ran\nran\nran\nf\nran\n711 ") || !strings.HasSuffix(out, "b'v'\n") && !strings.Contains(errs, "not supported") || !strings.Contains(out, " 755 981158400 ") {
		t.Errorf("%d %q %q", status, out, errs)
	}
	out, errs, status = c.inside("--mode", "rw", "--", "sh", "-ec", `echo 'int main(void) { return 7; }' >p.c; command -v cc >/dev/null || exit 7; cc -o p p.c; ./p`)
	if status != 7 {
		t.Errorf("a linker: %d %q %q", status, out, errs)
	}
}

// No trick of names reaches a file of the user's that lies elsewhere, and what is refused says why.
func TestLandlockMetadataOutside(t *testing.T) {
	c := corner(t, "filter")
	for _, dir := range []string{"outside", "shared"} {
		if err := os.Mkdir(filepath.Join(c.home, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	files := []string{"outside/kept", "outside/hard", "shared/read"}
	for _, name := range files {
		if err := os.WriteFile(filepath.Join(c.home, name), []byte("x"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(c.home, "outside/hard"), filepath.Join(c.work, "hard")); err != nil {
		t.Fatal(err)
	}
	for _, name := range append(files, "outside", "shared") {
		if err := os.Chown(filepath.Join(c.home, name), c.uid(), lonerGID); err != nil {
			t.Fatal(err)
		}
	}
	c.script("try.py", `import ctypes, os, sys, threading
home = sys.argv[1]
out = home + "/outside/kept"
os.symlink(out, "link"); os.symlink(home + "/outside", "dir"); open("mine", "w").close()
fd = os.open("/", os.O_PATH)
here = os.open(".", os.O_PATH)
libc = ctypes.CDLL(None, use_errno=True)
tries = {
  "path": lambda: os.chmod(out, 0o777), "link": lambda: os.chmod("link", 0o777), "dir": lambda: os.chmod("dir/kept", 0o777),
  "dots": lambda: os.chmod("../outside/kept", 0o777), "fd": lambda: os.chmod(out[1:], 0o777, dir_fd=fd), "hard": lambda: os.chmod("hard", 0o777),
  "read": lambda: os.chmod(home + "/shared/read", 0o777), "times": lambda: os.utime(out, (1, 1)), "xattr": lambda: os.setxattr(out, "user.a", b"1"),
  "owner": lambda: os.chown("dir/kept", -1, os.getgid()), "suid": lambda: os.chmod("mine", 0o4755), "capability": lambda: os.setxattr("mine", "security.capability", b"1" * 20),
  "proc": lambda: os.chmod("/proc/self/root" + out, 0o777), "cwd": lambda: os.chmod("/proc/self/cwd/../outside/kept", 0o777),
  "supervisor": lambda: os.chmod("/proc/%d/fd/3" % os.getppid(), 0o777),
}
for name, act in tries.items():
  try: act(); print(name, "worked")
  except OSError as e: pass
os.mkdir("swap"); open("swap/kept", "w").close(); os.symlink(home + "/outside", "swapped")
going = True
def swap():
  while going: libc.syscall(316, -100, b"swap", -100, b"swapped", 2)
if os.uname().machine == "x86_64":
  other = threading.Thread(target=swap); other.start()
  for i in range(2000):
    try: os.chmod("swap/kept", 0o604 | (i & 1) << 3)
    except OSError: pass
  going = False; other.join()
print("tried", len(tries))
`)
	r := c.result("--allow-gap", "landlock", "--mode", "rw", "--ro", filepath.Join(c.home, "shared"), "--", "sh", "-c", "python3 try.py '"+c.home+"' >said")
	if said, err := os.ReadFile(filepath.Join(c.work, "said")); string(said) != "tried 15\n" {
		t.Errorf("%q, %v", said, err)
	}
	for _, name := range files {
		if st, err := os.Stat(filepath.Join(c.home, name)); err != nil || st.Mode().Perm() != 0o640 || st.ModTime().Unix() == 1 {
			t.Errorf("%s: %v %v", name, st.Mode(), err)
		}
	}
	c.wantDenied(r, map[string]string{
		"chmod " + filepath.Join(c.home, "shared/read"):      "filesystem.metadata: --rw " + filepath.Join(c.home, "shared/read"),
		"chmod " + filepath.Join(c.work, "hard"):             "filesystem.metadata: --allow-gap filesystem.metadata",
		"chmod " + filepath.Join(c.work, "mine"):             "process.seccomp_allow: ",
		"utimensat " + filepath.Join(c.home, "outside/kept"): "filesystem.metadata: --rw " + filepath.Join(c.home, "outside/kept"),
	})
}

// wantDenied looks for refusals by their act and object: clause and remedy.
func (c cornered) wantDenied(r *runs.Result, want map[string]string) {
	c.t.Helper()
	have := map[string]string{}
	for _, e := range c.events(r) {
		if !e.Denied() || e.Phase != trace.PhaseCommand {
			continue
		}
		text, _, _ := strings.Cut(strings.TrimPrefix(trace.Sentence(&e), "denied "), " (")
		have[text] = e.Rule + ": " + e.Remedy
		if e.Layer != trace.LayerSeccomp || e.Certainty != trace.Certain || e.Rule == "" {
			c.t.Errorf("%s: %s, %s, %q", text, e.Layer, e.Certainty, e.Rule)
		}
	}
	for act, why := range want {
		if have[act] != why {
			c.t.Errorf("%s: %q, want %q", act, have[act], why)
		}
	}
	if c.t.Failed() {
		c.t.Logf("%q", have)
	}
}

// All that the filter refuses because namespaces are shared is in the record, each with its clause.
func TestLandlockRefusalsAreTold(t *testing.T) {
	c := corner(t, "filter")
	c.script("try.py", `import ctypes, fcntl, os, resource, socket
libc = ctypes.CDLL(None, use_errno=True)
out = os.environ["HOME"] + "/../../.."
tries = [lambda: os.chmod(out, 0o755), lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM), lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)),
  lambda: os.sched_setaffinity(os.getppid(), {0}), lambda: os.setpriority(os.PRIO_USER, 0, 5), lambda: fcntl.ioctl(0, 0x40086602, b"0" * 8), lambda: os.utime(out), lambda: os.setxattr(out, "user.a", b"1")]
for act in tries:
  try: act(); print("worked", act)
  except OSError as e: print(e.errno)
for call in libc.shmget, libc.semget, libc.msgget: print(call(0, 1, 0))
`)
	r := c.result("--allow-gap", "landlock", "--mode", "rw", "--", "sh", "-c", "python3 try.py >said")
	if said, err := os.ReadFile(filepath.Join(c.work, "said")); string(said) != strings.Repeat("1\n", 8)+strings.Repeat("-1\n", 3) {
		t.Errorf("%q, %v", said, err)
	}
	const helper = "install the helper (README): systemctl enable --now agentguard.socket"
	c.wantDenied(r, map[string]string{
		"socket inet6": "network.namespace: " + helper, "prlimit64": "process.namespaces: " + helper, "sched_setaffinity": "process.namespaces: " + helper,
		"setpriority": "process.namespaces: " + helper, "ioctl": "filesystem.attributes: " + helper, "shmget": "process.namespaces: " + helper, "semget": "process.namespaces: " + helper, "msgget": "process.namespaces: " + helper,
	})
}
