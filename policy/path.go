package policy

import (
	"path/filepath"
	"strings"
)

const (
	maxPath      = 4095 // PATH_MAX less its NUL, include/uapi/linux/limits.h
	maxComponent = 255  // NAME_MAX
)

// generated are the directories that agentguard itself makes for a run;
// nothing of the host may be mounted over them.
var generated = [...]string{"/proc", "/sys", "/dev"}

// checkPath refuses what could not name one path of the host, or would name
// another than the reader thinks.
func checkPath(text string) *problem {
	switch {
	case text == "":
		return wrong("", "the path is empty")
	case text[0] == '~':
		return wrong("write the path in full", "%s: ~ is not expanded", quote(text))
	case text[0] == '$':
		return wrong("write the path in full", "%s: variables are not expanded", quote(text))
	case strings.ContainsFunc(text, isControl):
		return wrong("", "%s: a path must not contain control characters", quote(text))
	case len(text) > maxPath:
		return wrong("", "%s: the path is longer than %d bytes", quote(text), maxPath)
	}
	for _, component := range strings.Split(text, "/") {
		if len(component) > maxComponent {
			return wrong("", "%s: a component of the path is longer than %d bytes", quote(text), maxComponent)
		}
	}
	return nil
}

// isControl reports C0 controls, DEL, C1 controls, and what makes a line read as something that
// it is not: bidirectional overrides and marks, line and paragraph separators, at which some
// viewers break a line, and what is not seen at all. Joiners stay: scripts are written with them.
func isControl(r rune) bool {
	switch {
	case r < 0x20, r >= 0x7f && r < 0xa0, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069,
		r == 0x061c, r == 0x200b, r == 0x200e, r == 0x200f, r == 0x2028, r == 0x2029, r == 0x2060, r == 0xfeff:
		return true
	}
	return false
}

// absolute returns the path that text names, seen from directory base.
func absolute(text, base string) (string, *problem) {
	if p := checkPath(text); p != nil {
		return "", p
	}
	if filepath.IsAbs(text) {
		return filepath.Clean(text), nil
	}
	if base == "" {
		return "", wrong("write an absolute path", "%s: the directory that it is relative to is not known", quote(text))
	}
	return filepath.Join(base, text), nil
}

// parseMount reads PATH or PATH:AT.
func parseMount(v value) (Mount, *problem) {
	host, at, split := strings.Cut(v.text, ":")
	path, p := absolute(host, v.base)
	if p != nil {
		return Mount{}, p
	}
	m := Mount{Path: path, At: path, Source: v.src}
	if split {
		if m.At, p = parseAt(at); p != nil {
			return Mount{}, p
		}
	}
	if m.At == "/" {
		return Mount{}, wrong("name the directories that the command needs", "%s: nothing can be mounted at /, and the whole host cannot be granted", quote(v.text))
	}
	for _, g := range generated {
		if below(m.At, g) {
			return Mount{}, wrong("write PATH:AT with another AT", "%s: agentguard makes %s itself, nothing can be mounted there", quote(v.text), g)
		}
	}
	return m, nil
}

// parseAt reads the place where the command sees a mount.
func parseAt(at string) (string, *problem) {
	if p := checkPath(at); p != nil {
		return "", p
	}
	switch {
	case strings.Contains(at, ":"):
		return "", wrong("PATH or PATH:AT", "%s: more than one colon", quote(at))
	case !filepath.IsAbs(at):
		return "", wrong("write PATH:/AT", "%s: the place in the sandbox must be an absolute path", quote(at))
	}
	return filepath.Clean(at), nil
}

// parsePath reads a path that has no AT.
func parsePath(v value) (Text, *problem) {
	path, p := absolute(v.text, v.base)
	return Text{Value: path, Source: v.src}, p
}

// parseProtect reads a path below the workspace, or an absolute one.
func parseProtect(v value) (Text, *problem) {
	if p := checkPath(v.text); p != nil {
		return Text{}, p
	}
	clean := filepath.Clean(v.text)
	if clean == "." || clean == ".." || strings.HasPrefix(clean, "../") {
		return Text{}, wrong("paths are relative to the workspace", "%s is not below the workspace", quote(v.text))
	}
	return Text{Value: clean, Source: v.src}, nil
}

// below reports whether path is dir or lies under it. Both are clean.
func below(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// mountText is the inverse of parseMount.
func mountText(m Mount) string {
	if m.At == m.Path {
		return m.Path
	}
	return m.Path + ":" + m.At
}
