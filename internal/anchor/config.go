// Package anchor takes what was signed on this host to places where whoever
// gains this host later cannot change it: a file (of another machine, or
// append-only), the system log, or a command of the administrator's.
//
// It never delays a run: lines wait in a bounded queue, each place has a time
// limit, and what did not arrive is counted.
package anchor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/outer"
	"github.com/agentguard/agentguard/internal/strictyaml"
)

// Config is /etc/agentguard/seal.yaml.
type Config struct {
	// Durable says when a run waits for the disk before its seal is signed:
	// "auto", also when empty, for runs that lasted a second or more; "always"; "never".
	Durable string `yaml:"durable"`
	Anchor  Places `yaml:"anchor"`
}

// Places are where lines are taken. None is the default.
type Places struct {
	File        string   `yaml:"file"`        // absolute; one JSON line for each, appended
	Syslog      bool     `yaml:"syslog"`      // the same line, to /dev/log, facility auth, severity notice
	Command     []string `yaml:"command"`     // program by its absolute path, and arguments; the line is its stdin
	Checkpoints bool     `yaml:"checkpoints"` // not the seals only
	Timeout     Seconds  `yaml:"timeout"`     // for the end of a run, and for one line; 2 seconds when zero
}

// Seconds is a time in a file, such as "500ms" or "2s".
type Seconds time.Duration

// UnmarshalYAML implements yaml.BytesUnmarshaler.
func (s *Seconds) UnmarshalYAML(b []byte) error {
	d, err := time.ParseDuration(string(bytes.Trim(b, "\"' \n")))
	if err == nil && (d <= 0 || d > time.Minute) {
		err = errors.New("it must be more than 0 and at most 1m")
	}
	if err != nil {
		return fmt.Errorf("timeout: %w", err)
	}
	*s = Seconds(d)
	return nil
}

// any reports whether there is a place at all.
func (p *Places) any() bool { return p.File != "" || p.Syslog || len(p.Command) > 0 }

func (p *Places) timeout() time.Duration {
	if p.Timeout > 0 {
		return time.Duration(p.Timeout)
	}
	return 2 * time.Second
}

// Read reads the configuration, which must be a file that only root can write:
// a command in it is run as root. A file that is not there is the zero Config.
func Read(name string) (Config, error) {
	var c Config
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := outer.Fstat(int(f.Fd()), &st); err != nil {
		return c, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != 0 || st.Mode&0o022 != 0 {
		return c, fmt.Errorf("%s must be a file of root's that nobody else can write", name)
	}
	return c, parse(name, f, &c)
}

// parse is strict: a key that is not known may be the anchor that somebody
// relies on.
func parse(name string, r io.Reader, c *Config) error {
	if err := strictyaml.Decode(r, c); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	switch c.Durable {
	case "", "auto", "always", "never":
	default:
		return fmt.Errorf("%s: durable: %q is none of auto, always, never", name, c.Durable)
	}
	for _, p := range append([]string{c.Anchor.File}, c.Anchor.Command[:min(1, len(c.Anchor.Command))]...) {
		if p != "" && !filepath.IsAbs(p) {
			return fmt.Errorf("%s: anchor: %q is not an absolute path", name, p)
		}
	}
	return nil
}
