package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/trace"
)

// What [Advise] says.
const (
	AdviseAirgap  = "airgap"   // run it in the envelope, without network and credentials
	AdviseSplit   = "split"    // compute in the envelope, act by dispatch
	AdviseMaySkip = "may-skip" // everything here is disposable already; an envelope inside adds little
)

// Question is what advice is asked about.
type Question struct {
	Policy     *policy.Policy // what the command would be granted
	Environ    []string       // of the caller
	Home       string         // of the caller; "" when there is none
	Disposable bool           // the caller vouches that the machine is thrown away
}

// Advice is an answer with its evidence. It is about what this machine is and what the
// policy grants, never about the text of a command, which proves nothing.
type Advice struct {
	V        int       `json:"v"` // 1
	Advice   string    `json:"advice"`
	Why      []string  `json:"why"`
	Do       []string  `json:"do"`
	Evidence []Finding `json:"evidence"`
}

// Finding is one thing that was looked for.
type Finding struct {
	About string `json:"about"` // vm, disposable, links, credentials, needs-network, needs-secret
	Holds bool   `json:"holds"`
	Text  string `json:"text"`
}

// Advise looks around and answers. It changes nothing and decides nothing: no
// run is ever left out of the envelope because of it.
func Advise(q Question) *Advice {
	a := &Advice{V: 1, Why: []string{}}
	a.judge(signs{
		vm: a.find("vm", vmFinding()), disposable: a.find("disposable", disposableFinding(q.Disposable)), links: a.find("links", linksFinding("/proc/net", "/dev/vsock")),
		credentials: a.find("credentials", credentialsFinding(q.Environ, q.Home, "/")), needsNetwork: a.find("needs-network", networkNeed(q.Policy)), needsSecret: a.find("needs-secret", secretNeed(q.Policy)),
	})
	return a
}

// signs are what the findings say.
type signs struct{ vm, disposable, links, credentials, needsNetwork, needsSecret bool }

// judge is the decision rule.
func (a *Advice) judge(s signs) {
	switch {
	case s.needsNetwork || s.needsSecret:
		a.split(s.needsNetwork, s.needsSecret)
	case s.vm && s.disposable && !s.links && !s.credentials:
		a.Advice = AdviseMaySkip
		a.Why = append(a.Why, "this is a disposable virtual machine without network and credentials: it is the envelope, and another inside may be skipped")
		a.Do = append(a.Do, "agentguard does not skip it by itself: agentguard exec -- COMMAND records what happens, whatever is around it")
	default:
		a.Advice = AdviseAirgap
		a.Why = append(a.Why, "the command needs neither network nor credential, and this machine is no envelope by itself: "+strings.Join(s.missing(), ", "))
		a.Do = append(a.Do, "agentguard exec -- COMMAND")
	}
}

// find notes what was found.
func (a *Advice) find(about string, f Finding) bool {
	f.About, f.Text = about, oneLine(f.Text)
	a.Evidence = append(a.Evidence, f)
	return f.Holds
}

func (a *Advice) split(network, secret bool) {
	a.Advice = AdviseSplit
	if secret {
		a.Why = append(a.Why, "what the policy grants has a credential in it, or the way to one: code and a secret never share a frame")
		a.Do = append(a.Do, "let the command print JSON, and the host make the request: agentguard exec --dispatch ACTION -- COMMAND (docs/dispatch.md)")
	}
	if network {
		a.Why = append(a.Why, "the policy opens the network: what has read something could send it")
		a.Do = append(a.Do, "fetch first, with --allow HOST:PORT and without anything private in view; then compute without network")
	}
}

// missing says why this machine is no envelope by itself.
func (s signs) missing() []string {
	var out []string
	for _, m := range []struct {
		is   bool
		text string
	}{{!s.vm, "no virtual machine shows itself"}, {!s.disposable, "what is left on it stays"}, {s.links, "it has a network"}, {s.credentials, "it has credentials"}} {
		if m.is {
			out = append(out, m.text)
		}
	}
	return out
}

func vmFinding() Finding {
	s := findVM()
	if !s.Found {
		return Finding{Text: "no virtual machine shows itself"}
	}
	return Finding{Holds: true, Text: "inside a virtual machine: " + strings.Join(s.Evidence, "; ")}
}

// memoryRoots are file systems of a root that does not outlive the machine
// (include/uapi/linux/magic.h).
var memoryRoots = map[int64]string{unix.TMPFS_MAGIC: "tmpfs", unix.RAMFS_MAGIC: "ramfs", unix.SQUASHFS_MAGIC: "squashfs"}

func disposableFinding(vouched bool) Finding {
	if vouched {
		return Finding{Holds: true, Text: "the caller says so (--disposable)"}
	}
	var st unix.Statfs_t
	if err := unix.Statfs("/", &st); err != nil {
		return Finding{Text: "not to be told: " + err.Error()}
	}
	if name, ok := memoryRoots[int64(st.Type)]; ok {
		if why := foreignRoot(); why != "" {
			return Finding{Text: "the root file system is " + name + ", but not the machine's: " + why + "; --disposable says so where you know it"}
		}
		return Finding{Holds: true, Text: "the root file system is " + name + ": it ends with the machine"}
	}
	return Finding{Text: "nothing shows that the machine is thrown away; --disposable says so where you know it"}
}

// foreignRoot says what shows that our root is one that a container or a sandbox has
// made: it ends with that, and not with the machine.
func foreignRoot() string {
	s := findContainer()
	s.addIf(foreign(os.Readlink, "user", initialUserNS), "a user namespace that is not the host's")
	if !s.Found {
		return ""
	}
	return strings.Join(s.Evidence, "; ")
}

// linksFinding looks for a route to anything but this machine, and for a socket
// to the monitor of a virtual one. Nothing is dialled.
func linksFinding(proc, vsock string) Finding {
	var devices []string
	for file, field := range map[string]int{"route": 0, "ipv6_route": 9} {
		for i, line := range strings.Split(string(sample(filepath.Join(proc, file))), "\n") {
			f := strings.Fields(line)
			if len(f) <= field || file == "route" && i == 0 || f[field] == "lo" || slices.Contains(devices, f[field]) {
				continue
			}
			devices = append(devices, f[field])
		}
	}
	slices.Sort(devices)
	var links []string
	if len(devices) > 0 {
		links = append(links, "routes by "+trace.Quote(strings.Join(devices, ", ")))
	}
	if _, err := os.Lstat(vsock); err == nil {
		links = append(links, "a socket to the machine's monitor ("+vsock+")")
	}
	if len(links) == 0 {
		return Finding{Text: "no route but to this machine itself"}
	}
	return Finding{Holds: true, Text: strings.Join(links, "; ")}
}

// Where credentials usually are: below a home directory, and on the host.
var (
	homeSecrets = []string{
		".ssh/id_*", ".aws/credentials", ".netrc", ".git-credentials", ".config/gh/hosts.yml", ".docker/config.json", ".npmrc", ".pypirc", ".kube/config",
		".config/gcloud/application_default_credentials.json", ".gnupg/private-keys-v1.d/*", ".password-store/*", ".vault-token", ".cargo/credentials*", ".azure/*.json",
	}
	hostSecrets = []string{"run/secrets/*", "var/run/secrets/*", "etc/agentguard/credentials/*", "run/docker.sock", "var/run/docker.sock", "run/containerd/containerd.sock", "etc/kubernetes/*.conf"}
)

// credentialsFinding looks for names only: nothing is opened.
func credentialsFinding(environ []string, home, root string) Finding {
	var found []string
	for _, e := range environ {
		if name, value, _ := strings.Cut(e, "="); value != "" && policy.SecretName(name) {
			found = append(found, "the variable "+name)
		}
	}
	look := func(dir string, patterns []string) {
		for _, p := range patterns {
			paths, _ := filepath.Glob(filepath.Join(dir, p)) // the patterns are well formed
			found = append(found, paths...)
		}
	}
	if home != "" {
		look(home, homeSecrets)
	}
	look(root, hostSecrets)
	if len(found) == 0 {
		return Finding{Text: "none where they usually are; that proves little"}
	}
	slices.Sort(found)
	const most = 8
	n := len(found)
	for i := range found {
		found[i] = trace.Line(found[i])
	}
	text := strings.Join(found[:min(n, most)], ", ")
	if n > most {
		text += fmt.Sprintf(" and %d more", n-most)
	}
	return Finding{Holds: true, Text: text}
}

func networkNeed(p *policy.Policy) Finding {
	if p == nil || len(p.Allow) == 0 {
		return Finding{Text: "the policy opens no destination"}
	}
	return Finding{Holds: true, Text: fmt.Sprintf("the policy opens the network, first %s (%s)", trace.Quote(p.Allow[0].Text), p.Allow[0].Source)}
}

// secretNeed looks for what the policy would hand over.
func secretNeed(p *policy.Policy) Finding {
	var what []string
	if p == nil {
		return Finding{Text: "no policy was looked at"}
	}
	for _, e := range p.EnvSet {
		if policy.SecretName(e.Name) {
			what = append(what, fmt.Sprintf("the variable %s (%s)", e.Name, e.Source))
		}
	}
	for _, list := range [][]policy.Text{p.Secrets, p.Unix} {
		for _, t := range list {
			what = append(what, fmt.Sprintf("%s (%s)", trace.Quote(t.Value), t.Source))
		}
	}
	for _, t := range p.EnvAllow {
		if policy.SecretName(t.Value) {
			what = append(what, fmt.Sprintf("the variable %s (%s)", t.Value, t.Source))
		}
	}
	if len(what) == 0 {
		return Finding{Text: "the policy passes no credential and no socket"}
	}
	return Finding{Holds: true, Text: strings.Join(what, ", ")}
}
