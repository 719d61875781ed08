package action

import (
	"path/filepath"
	"strings"

	"github.com/agentguard/agentguard/policy"
)

// Credential says where a secret is. It is read when a request is about to be
// sent, and never stored.
type Credential struct {
	Kind    string   // of the constants
	Name    string   // the path, the name of the systemd credential, TYPE:DESCRIPTION of the key, or the variable
	Command []string // FromCommand
	Source  policy.Source
}

// Where credentials come from.
const (
	FromFile    = "file"    // nobody but its owner, root or the caller, may read it
	FromSystemd = "systemd" // $CREDENTIALS_DIRECTORY/NAME (systemd.exec(5))
	FromKeyring = "keyring" // the session's or the user's keyring (keyrings(7))
	FromCommand = "command" // the first line of what it prints
	FromEnv     = "env"     // a variable of agentguard's own
)

// ID names the source, never the value. Records have a keyed digest of it.
func (c *Credential) ID() string {
	if c == nil {
		return ""
	}
	if c.Kind == FromCommand {
		return c.Kind + ":" + strings.Join(c.Command, "\x00")
	}
	return c.Kind + ":" + c.Name
}

// Shown names the source for people: a command only by its program, since its
// arguments may tell more than they should.
func (c *Credential) Shown() string {
	if c.Kind == FromCommand {
		return "the command " + policy.Quote(c.Command[0])
	}
	return c.Kind + " " + policy.Quote(c.Name)
}

func (r reader) credential(n *policy.Node, what string) *Credential {
	if n == nil {
		return nil
	}
	m := r.Mapping(n, what, FromFile, FromSystemd, FromKeyring, FromCommand, FromEnv)
	if len(m) != 1 {
		r.Fail(n.Source, "file, systemd, keyring, command or env", "%s: name one source", what)
		return nil
	}
	c := &Credential{Source: n.Source}
	for kind, v := range m {
		c.Kind = kind
		if kind == FromCommand {
			c.Command = r.argv(v, what+".command")
			return c
		}
		c.Name = r.Text(v, what+"."+kind)
		if problem := wrongName(kind, c.Name); c.Name != "" && problem != "" {
			r.Fail(v.Source, problem, "%s.%s: %s cannot be used", what, kind, policy.Quote(c.Name))
		}
	}
	return c
}

// wrongName says what a name of this kind must be, or nothing when it is.
func wrongName(kind, name string) string {
	switch kind {
	case FromFile:
		if !filepath.IsAbs(name) || strings.Contains(name, "\x00") {
			return "an absolute path"
		}
	case FromSystemd:
		if strings.Contains(name, "/") || name == "." || name == ".." {
			return "a name without a slash"
		}
	case FromKeyring:
		typ, description, ok := strings.Cut(name, ":")
		if !ok || typ != "user" && typ != "logon" || description == "" {
			return "user:DESCRIPTION"
		}
		if typ == "logon" {
			return "user:DESCRIPTION; the kernel gives a logon key to nobody"
		}
	case FromEnv:
		if strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			return "the name of a variable"
		}
	}
	return ""
}

func (r reader) argv(n *policy.Node, what string) []string {
	var out []string
	for _, item := range r.List(n, what) {
		out = append(out, r.Text(item, what))
	}
	if len(out) == 0 || !filepath.IsAbs(out[0]) {
		r.Fail(n.Source, "[/usr/bin/pass, show, NAME]", "%s: a list that begins with an absolute path; no shell reads it", what)
		return []string{""}
	}
	return out
}
