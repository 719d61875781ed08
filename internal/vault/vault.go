// Package vault keeps what vouches for records on this host: the host's key,
// and the log of all runs that were started and sealed.
//
//	keys/host       the private key, mode 0600
//	keys/public     every public key this host has had, one a line, newest last
//	log/entries     one JSON line for each start, seal and deletion: leaves of an RFC 6962 tree
//	log/hashes      stored hashes of the tree (tlog.StoredHashIndex), a line of base64 each, made from the entries
//	log/head        signed head of the tree
//
// Both belong to root alone. Several supervisors use them at once: whoever adds
// to the log or makes a key holds an exclusive flock(2) on its directory.
package vault

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/trace/seal"
)

// Vault is an open vault.
type Vault struct {
	keys, log *os.File
	shown     *Snapshot // instead of both
}

// Snapshot is what of a vault anybody may read, at one moment: nothing in it is
// secret, and nobody who has it can hold up those who write.
type Snapshot struct {
	Public  string   // the public keys, as PublicText
	Head    string   // of the log, signed
	Entries *os.File // of the log, read-only; nil: there are none
	Size    int64    // of them that Head is about, in bytes
}

// View is a vault to verify by, of which the rest is elsewhere. Close closes the entries.
func View(s *Snapshot) *Vault { return &Vault{shown: s} }

// Open opens the vault in a directory that nobody but root can exchange, and
// makes it, mode 0700, if need be.
func Open(home *os.File) (*Vault, error) {
	v := &Vault{}
	var err error
	if v.keys, err = openDir(home, "keys"); err == nil {
		v.log, err = openDir(home, "log")
	}
	if err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// openDir opens a directory of ours and refuses one that others can enter.
func openDir(home *os.File, name string) (*os.File, error) {
	if err := unix.Mkdirat(int(home.Fd()), name, 0o700); err != nil && err != unix.EEXIST {
		return nil, fmt.Errorf("vault: make %s/%s: %w", home.Name(), name, err)
	}
	fd, err := unix.Openat(int(home.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("vault: open %s/%s: %w", home.Name(), name, err)
	}
	dir := os.NewFile(uintptr(fd), home.Name()+"/"+name)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(os.NewSyscallError("fstat", err), dir.Close())
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return nil, errors.Join(fmt.Errorf("vault: %s must belong to uid %d with mode 0700 (it has uid %d, mode %#o)", dir.Name(), os.Geteuid(), st.Uid, st.Mode&0o777), dir.Close())
	}
	return dir, nil
}

// Close closes the directories.
func (v *Vault) Close() error {
	var errs []error
	if v.shown != nil && v.shown.Entries != nil {
		errs = append(errs, v.shown.Entries.Close())
	}
	for _, d := range []*os.File{v.keys, v.log} {
		if d != nil {
			errs = append(errs, d.Close())
		}
	}
	return errors.Join(errs...)
}

// lock takes the lock of a directory and returns how to give it back. A
// description of its own makes it exclude other users of the same Vault too.
func lock(dir *os.File) (func(), error) {
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	for {
		switch err = unix.Flock(fd, unix.LOCK_EX); err {
		case nil:
			return func() { unix.Close(fd) }, nil
		case unix.EINTR:
		default:
			unix.Close(fd)
			return nil, os.NewSyscallError("flock", err)
		}
	}
}

func openIn(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	path := dir.Name() + "/" + name
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func readIn(dir *os.File, name string) ([]byte, error) {
	f, err := openIn(dir, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// replace puts a new file in the place of an old one in one step.
func replace(dir *os.File, name string, data []byte, durable bool) error {
	f, err := openIn(dir, "."+name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && durable {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = unix.Renameat(int(dir.Fd()), "."+name, int(dir.Fd()), name); err != nil {
		return os.NewSyscallError("rename", err)
	}
	if durable {
		err = dir.Sync()
	}
	return err
}

// Key returns the host's key, which it makes when there is none. The name is
// that of a new key.
func (v *Vault) Key(name string) (*seal.Key, error) {
	if v.shown != nil {
		return nil, errNotShown
	}
	b, err := readIn(v.keys, "host")
	if errors.Is(err, fs.ErrNotExist) {
		return v.firstKey(name)
	}
	if err != nil {
		return nil, err
	}
	return seal.ParsePrivate(b)
}

func (v *Vault) firstKey(name string) (*seal.Key, error) {
	unlock, err := lock(v.keys)
	if err != nil {
		return nil, err
	}
	defer unlock()
	b, err := readIn(v.keys, "host")
	if err == nil { // another run was faster
		return seal.ParsePrivate(b)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return v.makeKey(name)
}

// makeKey makes a key and stores it: first the public half, so that nothing is
// ever signed by a key that nobody can check.
func (v *Vault) makeKey(name string) (*seal.Key, error) {
	k, err := seal.NewKey(name)
	if err != nil {
		return nil, err
	}
	old, err := v.PublicText()
	if err != nil {
		return nil, err
	}
	if err := replace(v.keys, "public", []byte(old+k.Public()+"\n"), true); err != nil {
		return nil, err
	}
	return k, replace(v.keys, "host", k.MarshalPrivate(), true)
}

var errNotShown = errors.New("vault: the private key is root's; agentguard keys export prints the public ones")

// Rotate makes a new key for the host. The log, which the old key has signed,
// says so and is signed by the new one from then on. The old public key stays.
func (v *Vault) Rotate(name string) (*seal.Key, error) {
	if v.shown != nil {
		return nil, errNotShown
	}
	unlock, err := lock(v.keys)
	if err != nil {
		return nil, err
	}
	defer unlock()
	k, err := v.makeKey(name)
	if err != nil {
		return nil, err
	}
	_, err = v.Append(k, &seal.LogEntry{Kind: seal.LogKey, Why: k.Public()}, true)
	return k, err
}

// PublicText returns all public keys of this host, one a line, the newest last;
// "" when it has none yet.
func (v *Vault) PublicText() (string, error) {
	if v.shown != nil {
		return v.shown.Public, nil
	}
	b, err := readIn(v.keys, "public")
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(b), err
}

// Public returns all public keys of this host.
func (v *Vault) Public() (seal.Keys, error) {
	text, err := v.PublicText()
	if err != nil {
		return nil, err
	}
	return seal.ParseKeys(text)
}

// KeyName is the name of this host's key: "agentguard/" and the host's name,
// without what a key's name may not hold.
func KeyName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return "agentguard/" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, host)
}
