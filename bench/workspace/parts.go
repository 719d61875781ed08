package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// grow makes n small files, at most 100 in a directory.
func grow(dir string, n int) error {
	for i := range n {
		sub := filepath.Join(dir, strconv.Itoa(i/10000), strconv.Itoa(i/100%100))
		if i%100 == 0 {
			if err := os.MkdirAll(sub, 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(sub, strconv.Itoa(i)), bytes.Repeat([]byte{byte('a' + i%26)}, 1+i%4000), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// timed runs a command and takes the time of all of it.
func timed(cmd *exec.Cmd) (time.Duration, error) {
	start := time.Now()
	out, err := cmd.CombinedOutput()
	took := time.Since(start)
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	return took, nil
}

// told runs a command that says itself how long its work took, in nanoseconds.
func told(cmd *exec.Cmd) (time.Duration, error) {
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", cmd, err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	return time.Duration(n), err
}

func (b *bench) exec(flags ...string) *exec.Cmd {
	return exec.Command(b.agentguard, append([]string{"exec", "-q", "--state", b.dir + "/state"}, flags...)...)
}

func (b *bench) start() error {
	var rows []*row
	for _, n := range b.starts {
		ws := filepath.Join(b.dir, "start"+strconv.Itoa(n))
		if _, err := os.Stat(ws); err != nil {
			if err := grow(ws, n); err != nil {
				return err
			}
		}
		rows = append(rows, &row{name: fmt.Sprintf("%d files", n), once: func() (time.Duration, error) { return timed(b.exec("-w", ws, "--", "/bin/true")) }})
	}
	if err := measure("start: agentguard exec -- /bin/true", max(b.rounds, 10), rows); err != nil {
		return err
	}
	if b.kept {
		return nil
	}
	return os.RemoveAll(filepath.Join(b.dir, "start"+strconv.Itoa(b.starts[len(b.starts)-1])))
}

func (b *bench) work() error {
	tree, copied := filepath.Join(b.dir, "tree"), filepath.Join(b.dir, "copy")
	if err := grow(tree, b.files); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(b.dir, "over/tmpfs"), 0o755); err != nil {
		return err
	}
	for _, kind := range []string{"read", "write", "stat"} {
		rows := []*row{
			{
				name: "native",
				before: func() error {
					_, err := timed(exec.Command("sh", "-c", `rm -rf "$2"; cp -a "$1" "$2"`, "sh", tree, copied))
					return err
				},
				once: func() (time.Duration, error) { return told(exec.Command(b.self, "-work", kind, copied)) },
			},
			{name: "overlay alone", once: func() (time.Duration, error) { return told(b.overlay(kind, tree)) }},
			{name: "agentguard", once: func() (time.Duration, error) {
				return told(b.exec("-w", tree, "--ro", b.self+":/bench", "--", "/bench", "-work", kind, tree))
			}},
		}
		if b.bwrap != "" {
			rows = append(rows, &row{name: "bwrap --tmp-overlay", once: func() (time.Duration, error) {
				return told(exec.Command(b.bwrap, "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--overlay-src", tree, "--tmp-overlay", tree,
					b.self, "-work", kind, tree))
			}})
		}
		if err := measure(fmt.Sprintf("%s: %d files", kind, b.files), b.rounds, rows); err != nil {
			return err
		}
	}
	return nil
}

// overlay is the work in an overlay over a tmpfs, in a mount namespace of its own.
func (b *bench) overlay(kind, tree string) *exec.Cmd {
	over := filepath.Join(b.dir, "over")
	cmd := exec.Command("sh", "-ec", `mount -t tmpfs none "$1/tmpfs"; mkdir "$1/tmpfs/upper" "$1/tmpfs/work"
		mount -t overlay none -o "lowerdir=$2,upperdir=$1/tmpfs/upper,workdir=$1/tmpfs/work,redirect_dir=on,metacopy=off,index=off,xino=auto" "$2"
		exec "$3" -work "$4" "$2"`, "sh", over, tree, b.self, kind)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return cmd
}

func (b *bench) commit() error {
	from, ws, to := filepath.Join(b.dir, "new"), filepath.Join(b.dir, "ws"), filepath.Join(b.dir, "to")
	if err := grow(from, b.commits); err != nil { // with -dir over what is there
		return err
	}
	clear := func(dir string) error {
		_, err := timed(exec.Command("sh", "-c", `rm -rf "$1"; mkdir "$1"; sync -f "$1"`, "sh", dir))
		return err
	}
	rows := []*row{
		{
			name:   "cp -a, sync",
			before: func() error { return clear(to) },
			once: func() (time.Duration, error) {
				return timed(exec.Command("sh", "-c", `cp -a "$1/." "$2"; sync -f "$2"`, "sh", from, to))
			},
		},
		{
			name: "agentguard commit",
			before: func() error {
				if err := clear(ws); err != nil {
					return err
				}
				_, err := timed(b.exec("-w", ws, "--ro", from, "--", "cp", "-a", from+"/.", ws))
				return err
			},
			once: func() (time.Duration, error) {
				return timed(exec.Command(b.agentguard, "commit", "-q", "--state", b.dir+"/state"))
			},
		},
	}
	return measure(fmt.Sprintf("commit of %d files", b.commits), b.rounds, rows)
}

// withOverlay is the bubblewrap that knows --tmp-overlay, or "".
func withOverlay(bwrap string) string {
	path, err := exec.LookPath(bwrap)
	if err != nil {
		return ""
	}
	out, err := exec.Command(path, "--help").CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--tmp-overlay")) {
		fmt.Println("this bubblewrap has no overlays (before 0.11): its rows are left out")
		return ""
	}
	return path
}

// doWork does one kind of work to every file below dir and says how long it took.
func doWork(kind, dir string, files int) error {
	paths := make([]string, 0, files)
	for i := range files {
		paths = append(paths, filepath.Join(dir, strconv.Itoa(i/10000), strconv.Itoa(i/100%100), strconv.Itoa(i)))
	}
	acts := map[string]func(p string) error{
		"read": func(p string) error { _, err := os.ReadFile(p); return err },
		"write": func(p string) error {
			f, err := os.OpenFile(p, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				return err
			}
			if _, err := f.WriteString("more"); err != nil {
				return err
			}
			if err := f.Close(); err != nil {
				return err
			}
			return os.WriteFile(p+".new", []byte("new"), 0o644)
		},
		"stat": func(p string) error {
			for range 20 {
				if _, err := os.Lstat(p); err != nil {
					return err
				}
			}
			return nil
		},
	}
	start := time.Now()
	for _, p := range paths {
		if err := acts[kind](p); err != nil {
			return err
		}
	}
	fmt.Println(time.Since(start).Nanoseconds())
	return nil
}
