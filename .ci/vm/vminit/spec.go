//go:build linux && amd64

package main

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// spec is what one boot runs. vmrun.sh writes it into the initramfs as /vmrun: NUL-terminated key=value fields, so that
// no byte of an argument needs quoting.
type spec struct {
	Args    []string      // argv; Args[0] is looked up in PATH
	Env     []string      // NAME=value, added to the environment of guestEnv
	Dir     string        // working directory, "/" when not given
	Share   []string      // the host's directories that must be visible even below /tmp and the like
	Timeout time.Duration // the command and all its children are killed then; zero means no limit
}

// parseSpec reads the fields of /vmrun. Unknown keys are errors: script and program come from one commit.
func parseSpec(src []byte) (spec, error) {
	s := spec{Dir: "/"}
	for _, field := range bytes.Split(bytes.TrimSuffix(src, []byte{0}), []byte{0}) {
		key, value, ok := bytes.Cut(field, []byte("="))
		if !ok {
			return spec{}, fmt.Errorf("field %q has no value", field)
		}
		switch v := string(value); string(key) {
		case "arg":
			s.Args = append(s.Args, v)
		case "env":
			s.Env = append(s.Env, v)
		case "dir":
			s.Dir = v
		case "share":
			s.Share = append(s.Share, v)
		case "timeout":
			n, err := strconv.ParseUint(v, 10, 31)
			if err != nil {
				return spec{}, fmt.Errorf("timeout: %w", err)
			}
			s.Timeout = time.Duration(n) * time.Second
		default:
			return spec{}, fmt.Errorf("unknown key %q", key)
		}
	}
	if len(s.Args) == 0 {
		return spec{}, errors.New("no command")
	}
	return s, nil
}
