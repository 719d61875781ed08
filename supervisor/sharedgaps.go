package supervisor

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/agentguard/agentguard/landlock"
	"github.com/agentguard/agentguard/policy"
)

// gapLandlock is the word that accepts, in ModeLandlock, all that every run lacks there: the
// gaps that come from nobody's clause. The record has the list that it stood for.
const gapLandlock = "landlock"

// Gaps that lift what ModeLandlock refuses by itself. The word does not stand for them.
const (
	gapMetadata = "filesystem.metadata" // chmod, chown, utime and setxattr by path: of all that is the user's
	gapProc     = "process.proc"        // /proc: the command lines of the user's other processes
)

const clauseSeccomp = "process.seccomp_allow"

// sharedGaps are what a run lacks that shares the host's namespaces.
func sharedGaps(p *policy.Policy, h *Host, g *grants) []Gap {
	var out []Gap
	add := func(clause, missing string) {
		out = append(out, Gap{Clause: clause, Source: policy.Source{}.String(), Missing: missing, Remedy: helperRemedy, byDefault: true})
	}
	add("filesystem.view", "no mount namespace: names, sizes, owners, times, links and attributes of all that the user can reach may be looked at, though not opened")
	add("filesystem.attributes", "what can be opened, for reading too, can be given another mode, owner, times and extended attributes by its descriptor (fchmod, futimens, fsetxattr): read-only keeps contents only")
	add("filesystem.private", "no mounts of its own: HOME and TMPDIR lie in the state directory without a limit, /tmp and /dev/shm are not to be had, and /etc is the host's")
	add("process.namespaces", "no PID namespace: numbers of other processes can be tried, and whoever kills the guardian ends the run")
	add("process.groups", "the user's other groups cannot be given up")
	add("network.namespace", "no network namespace: seccomp alone keeps sockets away, and there is no loopback either")
	written := func(clause string, src policy.Source, missing string) {
		add(clause, missing)
		g := &out[len(out)-1]
		g.Source, g.byDefault = src.String(), src.IsDefault()
		if !g.byDefault {
			g.Remedy += ", or accept with --allow-gap " + clause
		}
	}
	for _, l := range []struct {
		clause string
		limit  policy.Limit
	}{{"filesystem.max_output_bytes", p.MaxOutputBytes}, {"filesystem.max_files", p.MaxFiles}} {
		if limit(l.limit) >= 0 {
			written(l.clause, l.limit.Source, "no file system of a size: RLIMIT_FSIZE bounds one file, and nothing bounds all")
		}
	}
	if len(p.Protect) > 0 && slices.ContainsFunc(g.entries, func(e Entry) bool { return e.inPlace() }) {
		written(clauseProtect, p.Protect[0].Source, "in a directory that is written in place nothing can be made read-only without a mount, "+p.Protect[0].Value+" neither")
	}
	for _, t := range p.SeccompAllow {
		if sharing(p, h).Refuses(t.Value) {
			written(clauseSeccomp, t.Source, t.Value+" is refused all the same: without namespaces it reaches what is the host's")
		}
	}
	if guards(g) {
		add(clauseProtect, "what other programs execute in directories that are written in place (.git/hooks and the like) is compared afterwards, and not read-only")
	}
	newer := landlock.Missing(8) // unix sockets by path, which are not to be had before
	missing := slices.DeleteFunc(landlock.Missing(h.Info.Landlock), func(m string) bool { return slices.Contains(newer, m) })
	if len(missing) > 0 {
		add("landlock.abi", fmt.Sprintf("Landlock ABI %d does not guard: %s", h.Info.Landlock, strings.Join(missing, ", ")))
	}
	for i := range g.entries {
		if g.holdsSecrets(&g.entries[i]) {
			written(clauseToolchains, g.entries[i].Source, g.entries[i].From+" holds credentials, which cannot be masked without a mount: it is left out")
		}
	}
	lift := func(clause, missing string) {
		if p.AcceptsGap(clause) {
			out = append(out, Gap{Clause: clause, Source: "--allow-gap", Missing: missing, Remedy: "leave it out"})
		}
	}
	lift(gapMetadata, "modes, owners, times and attributes of all that is the user's can be changed by path")
	lift(gapProc, "/proc is open: command lines and states of all processes can be read")
	return append(out, overlaid(g)...)
}

// wordGap is a clause of one word that says something about staged changes or their storage.
type wordGap struct {
	clause          string
	text            policy.Text
	missing, remedy string
}

// unstagedWords are those that were written, and mean nothing where nothing can be staged.
func unstagedWords(p *policy.Policy) []wordGap {
	var out []wordGap
	add := func(clause string, t policy.Text, missing, remedy string) {
		if !t.Source.IsDefault() {
			out = append(out, wordGap{clause, t, missing, remedy})
		}
	}
	if p.Upper.Value != upperAuto {
		add(clauseUpper, p.Upper, "the run has no storage of its own without a mount: HOME and TMPDIR are directories of the host's disk", "leave it out")
	}
	if len(p.Cow) == 0 && (p.Workspace.Mode != "cow" || p.Workspace.Path == "") {
		return out // nothing would be staged anywhere
	}
	if p.Persistence.Value == "keep" {
		add("filesystem.persistence", p.Persistence, "nothing is staged without a mount that a later run could begin with", "leave it out")
	}
	if p.Commit.Value != "never" {
		add("filesystem.commit", p.Commit, "nothing is staged without a mount that could be committed", "leave it out, or write --mode rw")
	}
	return out
}

// guards reports whether something would be read-only in a directory that is written in place.
func guards(g *grants) bool {
	for i := range g.entries {
		if g.entries[i].guard {
			return true
		}
	}
	return false
}

// holdsSecrets reports whether a toolchain has files of credentials in it.
func (g *grants) holdsSecrets(e *Entry) bool {
	return slices.ContainsFunc(g.secrets, func(s hostSocket) bool { return s.in == devIno{e.Dev, e.Ino} })
}

// overlaid are grants for reading inside of others for writing, which Landlock adds up.
func overlaid(g *grants) []Gap {
	var out []Gap
	for i := range g.entries {
		e := &g.entries[i]
		if e.Access != "ro" || e.guard {
			continue
		}
		for k := range g.entries {
			if o := &g.entries[k]; o.Access == "rw" && o.At != e.At && o.pinned == "" && within(e.At, o.At) {
				key, _, _ := strings.Cut(e.Clause, " ")
				out = append(out, Gap{
					Clause: key, Source: e.Source.String(), Missing: e.At + " lies in " + o.At + ", which is writable, and Landlock takes nothing away: it is writable too",
					Remedy: "grant " + o.At + " in parts",
				})
				break
			}
		}
	}
	return out
}

// landlockRefusal says what a run would lack that nobody has accepted, why there is no other way,
// and which settings would make one.
func (h *Host) landlockRefusal(lacks []Gap) *Refusal {
	var names []string
	for _, g := range lacks {
		names = append(names, g.Clause)
	}
	return &Refusal{
		What: fmt.Sprintf("without root, the helper and user namespaces a run is confined by Landlock and seccomp alone, and lacks %s. User %d %s",
			strings.Join(names, ", "), os.Geteuid(), strings.TrimPrefix(h.userns.Refusal().What, "this user ")),
		Remedy: h.userns.Remedy + "; or accept what it lacks with --allow-gap landlock (docs/unprivileged.md says what each is)",
	}
}
