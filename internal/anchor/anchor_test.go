package anchor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func TestParse(t *testing.T) {
	tests := []struct{ in, want string }{
		{"", ""},
		{"durable: always\n", ""},
		{"anchor:\n  file: /x\n  syslog: true\n  command: [/bin/x, -y]\n  checkpoints: true\n  timeout: 500ms\n", ""},
		{"durable: sometimes\n", "none of auto, always, never"},
		{"anchor: {file: rel}\n", "not an absolute path"},
		{"anchor: {command: [mail]}\n", "not an absolute path"},
		{"anchor: {timeout: 2h}\n", "at most 1m"},
		{"anchor: {timeout: soon}\n", "timeout"},
		{"anchors: {file: /x}\n", "unknown field"},
		{"- 1\n", "seal.yaml"},
		{"durable: always\n---\nanchor: {file: /x}\n", "second document"},
	}
	for _, tt := range tests {
		var c Config
		err := parse("seal.yaml", strings.NewReader(tt.in), &c)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %q", tt.in, err, tt.want)
		}
	}
	var c Config
	if err := parse("x", strings.NewReader(tests[2].in), &c); err != nil || c.Anchor.timeout() != 500*time.Millisecond || len(c.Anchor.Command) != 2 {
		t.Errorf("%+v %v", c, err)
	}
}

// A file that others can write names no command that root would run.
func TestReadRefuses(t *testing.T) {
	testenv.Root(t)
	name := filepath.Join(t.TempDir(), "seal.yaml")
	if c, err := Read(name); err != nil || c.Anchor.any() {
		t.Errorf("without a file: %+v %v", c, err)
	}
	if err := os.WriteFile(name, []byte("durable: never\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if c, err := Read(name); err != nil || c.Durable != "never" {
		t.Errorf("%+v %v", c, err)
	}
	for _, spoil := range []func() error{
		func() error { return os.Chmod(name, 0o664) },
		func() error { return errors.Join(os.Chmod(name, 0o644), os.Chown(name, 1000, -1)) },
		func() error { return errors.Join(os.Rename(name, name+"2"), os.Symlink(name+"2", name)) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(name); err == nil {
			t.Error("read")
		}
	}
}

func TestPlaces(t *testing.T) {
	dir := t.TempDir()
	q := Start(Places{File: dir + "/file", Command: []string{"/bin/sh", "-c", "cat >>" + dir + "/command"}, Timeout: Seconds(20 * time.Second)})
	var want bytes.Buffer
	for i := range 10 {
		line := fmt.Appendf(nil, "{\"n\":%d}\n", i)
		want.Write(line)
		q.Offer(line)
	}
	q.Close()
	if lost, err := q.Lost(); lost > 0 || err != nil {
		t.Errorf("%d lost, %v", lost, err)
	}
	for _, name := range []string{"file", "command"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(b, want.Bytes()) {
			t.Errorf("%s: %q %v", name, b, err)
		}
	}
}

// A place that hangs or is not there costs lines, which are counted, and no
// more time than its limit.
func TestPlacesFail(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []Places{
		{Command: []string{"/bin/sleep", "1000"}},
		{Command: []string{"/bin/false"}},
		{Command: []string{"/no/such/program"}},
		{File: "/no/such/dir/file"},
		{File: dir + "/fifo"},
	} {
		p.Timeout = Seconds(50 * time.Millisecond)
		q := Start(p)
		for range depth * 3 {
			q.Offer([]byte("x\n"))
		}
		begun := time.Now()
		q.Close()
		if lost, err := q.Lost(); lost != depth*3 || err == nil {
			t.Errorf("%+v: %d lost of %d, %v", p, lost, depth*3, err)
		}
		if took := time.Since(begun); took > 2*time.Minute {
			t.Errorf("%+v: Close took %v", p, took)
		}
	}
}

func TestSyslog(t *testing.T) {
	path := t.TempDir() + "/log"
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := syslogTo(path, []byte("{\"kind\":\"seal\"}\n")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1000)
	n, err := unix.Read(fd, buf)
	if got := string(buf[:max(n, 0)]); err != nil || !strings.HasPrefix(got, "<37>") || !strings.HasSuffix(got, fmt.Sprintf(" agentguard[%d]: {\"kind\":\"seal\"}", os.Getpid())) {
		t.Errorf("%q %v", got, err)
	}
	if err := syslogTo(path+"-not", []byte("x\n")); err == nil {
		t.Error("sent to nobody")
	}
}

func TestNoPlace(t *testing.T) {
	q := Start(Places{})
	q.Offer([]byte("x"))
	q.Close()
	if n, err := q.Lost(); q != nil || q.Checkpoints() || n > 0 || err != nil {
		t.Error("a queue to nowhere")
	}
}
