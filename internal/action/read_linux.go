package action

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/outer"
	"github.com/agentguard/agentguard/internal/reexec"
)

// maxSecret bounds a credential.
const maxSecret = 64 << 10

// commandLimit bounds a command that prints a credential. A person may have to
// touch a key or type a passphrase.
const commandLimit = 60 * time.Second

// Reader reads credentials with somebody's authority.
type Reader struct {
	UID, GID int
	Groups   []int
	As       func(func() error) error         // opens files as that user
	Environ  []string                         // for a command, of which a few names are passed on
	Take     func(name string) (string, bool) // takes a variable out of our own environment
}

// Read returns the secret. The error says what is wrong with the source and
// never has anything of the value.
func (r *Reader) Read(ctx context.Context, c *Credential) (*Secret, error) {
	b, err := r.read(ctx, c)
	if err == nil {
		b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
		switch {
		case len(b) == 0:
			err = errors.New("it is empty")
		case len(b) > maxSecret:
			err = fmt.Errorf("it is larger than %d bytes", maxSecret)
		}
	}
	if err != nil {
		clear(b)
		return nil, fmt.Errorf("credential from %s (%s): %w", c.Shown(), c.Source, err)
	}
	return NewSecret(b), nil
}

func (r *Reader) read(ctx context.Context, c *Credential) (b []byte, err error) {
	switch c.Kind {
	case FromFile:
		err = r.As(func() (err error) { b, err = r.file(c.Name, 0o077); return err })
		return b, err
	case FromSystemd:
		dir := lookup(r.Environ, "CREDENTIALS_DIRECTORY")
		if !filepath.IsAbs(dir) {
			return nil, errors.New("$CREDENTIALS_DIRECTORY is not set: agentguard was not started by a unit with LoadCredential=")
		}
		// systemd gives the unit's user its right by an ACL, whose mask is in the bits of the group.
		err = r.As(func() (err error) { b, err = r.file(filepath.Join(dir, c.Name), 0o037); return err })
		return b, err
	case FromKeyring:
		return readKey(c.Name)
	case FromEnv:
		v, ok := r.Take(c.Name)
		if !ok {
			return nil, errors.New("the variable is not set")
		}
		return []byte(v), nil
	}
	return r.command(ctx, c.Command)
}

// file reads a regular file that root or the caller owns and nobody else may
// use, by the bits of its mode that are refused.
func (r *Reader) file(path string, refused uint32) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, errors.New("it is a symbolic link; name the file itself")
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if err := outer.Fstat(fd, &st); err != nil {
		return nil, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, errors.New("it is not a regular file")
	case st.Uid != 0 && int(st.Uid) != r.UID:
		return nil, fmt.Errorf("it belongs to uid %d, neither root nor the caller", st.Uid)
	case st.Mode&refused != 0:
		return nil, fmt.Errorf("its mode is 0%o: others may use it; chmod 600 it, and change the credential, which may be known", st.Mode&0o7777)
	}
	return io.ReadAll(io.LimitReader(f, maxSecret+2))
}

// readKey finds a key of TYPE:DESCRIPTION in the session's keyring, then in the
// user's, and reads it (keyctl(2)).
func readKey(name string) ([]byte, error) {
	typ, description, _ := strings.Cut(name, ":")
	id, err := unix.KeyctlSearch(unix.KEY_SPEC_SESSION_KEYRING, typ, description, 0)
	if err != nil {
		id, err = unix.KeyctlSearch(unix.KEY_SPEC_USER_KEYRING, typ, description, 0)
	}
	if err != nil {
		return nil, os.NewSyscallError("keyctl search", err)
	}
	buf := make([]byte, maxSecret+2)
	n, err := unix.KeyctlBuffer(unix.KEYCTL_READ, id, buf, 0)
	if err != nil {
		return nil, os.NewSyscallError("keyctl read", err)
	}
	return buf[:min(n, len(buf))], nil
}

// commandEnv is what a password store may need of the caller's environment.
var commandEnv = []string{
	"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TERM", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR",
	"DBUS_SESSION_BUS_ADDRESS", "GNUPGHOME", "GPG_TTY", "PASSWORD_STORE_DIR", "VAULT_ADDR",
}

// command runs a program as the caller and returns the first line that it
// prints. What it says on standard error is not repeated: it may be the secret.
func (r *Reader) command(ctx context.Context, argv []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	out := &bounded{left: maxSecret + 2}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Dir, cmd.WaitDelay = out, "/", time.Second
	cmd.Env = []string{}
	for _, name := range commandEnv {
		if v := lookup(r.Environ, name); v != "" {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 && r.UID != 0 {
		cmd.SysProcAttr.Credential = reexec.Credential(reexec.Identity{UID: r.UID, GID: r.GID, Groups: r.Groups})
	}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("it had not ended after %v", commandLimit)
	case out.over:
		err = fmt.Errorf("it printed more than %d bytes", maxSecret)
	case errors.As(err, &exit):
		err = fmt.Errorf("it failed: %v", exit)
	}
	if err != nil {
		clear(out.b)
		return nil, err
	}
	line, _, _ := bytes.Cut(out.b, []byte("\n"))
	return line, nil
}

func lookup(environ []string, name string) string {
	for _, e := range environ {
		if len(e) > len(name) && e[len(name)] == '=' && e[:len(name)] == name {
			return e[len(name)+1:]
		}
	}
	return ""
}

// bounded keeps the first bytes and takes the rest for a failure.
type bounded struct {
	b    []byte
	left int
	over bool
}

func (w *bounded) Write(b []byte) (int, error) {
	if len(b) > w.left {
		w.over = true
		return 0, errors.New("too much")
	}
	w.left -= len(b)
	w.b = append(w.b, b...)
	return len(b), nil
}
