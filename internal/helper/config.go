package helper

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/strictyaml"
)

// Config is /etc/agentguard/helper.yaml: what the administrator decides about the helper
// itself. What users may have is in the ceilings.
type Config struct {
	// AuditGroup, a name or a number, may read the records of all users. Without it that is
	// the group agentguard-audit, where there is one.
	AuditGroup string `yaml:"audit_group"`
	// Labels are those of a security module, besides the ones that confine nobody, from
	// which requests are taken: a word of AppArmor such as "firefox (enforce)", or a type
	// of SELinux.
	Labels []string `yaml:"labels"`
	// LogBytes is when the log is put aside, and LogKeep how many of those stay.
	LogBytes int64 `yaml:"log_bytes"`
	LogKeep  *int  `yaml:"log_keep"`
}

// Bounds of the log without a configuration: 32 MiB and four older ones.
const (
	defaultLogBytes = 32 << 20
	defaultLogKeep  = 4
)

// auditGroup is the default of Config.AuditGroup.
const auditGroup = "agentguard-audit"

// ReadConfig reads it. It must be a file that only root can write; without one the
// defaults hold, which come with an error too.
func ReadConfig(name string) (*Config, error) {
	c := &Config{}
	if err := c.read(name); err != nil {
		return &Config{}, fmt.Errorf("the helper's configuration: %w", err)
	}
	return c, nil
}

func (c *Config) read(name string) error {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != 0 || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s must be a file of root's that nobody else can write", name)
	}
	if err := c.parse(f); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// parse is strict: a key that is not known may be a word that was meant to refuse.
func (c *Config) parse(r io.Reader) error {
	if err := strictyaml.Decode(r, c); err != nil {
		return err
	}
	switch {
	case c.LogBytes != 0 && c.LogBytes < 1<<20:
		return fmt.Errorf("log_bytes: %d, and a MiB (1048576) is the least", c.LogBytes)
	case c.LogKeep != nil && (*c.LogKeep < 1 || *c.LogKeep > 100):
		return fmt.Errorf("log_keep: %d is not between 1 and 100", *c.LogKeep)
	}
	return nil
}

// logBounds are when the log is put aside, in bytes, and how many of those are kept.
func (c *Config) logBounds() (size int64, keep int) {
	size, keep = defaultLogBytes, defaultLogKeep
	if c.LogBytes != 0 {
		size = c.LogBytes
	}
	if c.LogKeep != nil {
		keep = *c.LogKeep
	}
	return size, keep
}

// Audits reports whether a peer may read the records of all users: its own group or one
// of its supplementary ones is the audit group.
func (c *Config) Audits(p *Peer) (bool, error) {
	name := c.AuditGroup
	if name == "" {
		name = auditGroup
	}
	gid, err := strconv.Atoi(name)
	if err != nil {
		g, err := user.LookupGroup(name)
		var unknown user.UnknownGroupError
		if errors.As(err, &unknown) && c.AuditGroup == "" {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("the audit group: %w", err)
		}
		if gid, err = strconv.Atoi(g.Gid); err != nil {
			return false, err
		}
	}
	return gid > 0 && (p.GID == gid || slices.Contains(p.Groups, gid)), nil
}
