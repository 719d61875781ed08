package trace

import (
	"net/netip"
	"strings"
	"testing"
)

func denyEvent() *Event {
	return &Event{
		Kind: KindOpen, Phase: PhaseCommand, Proc: Proc{Pid: 42, Start: 77}, Syscall: "openat", SyscallNr: 257, Errno: 13,
		Path: []byte("/data/in.txt"), PathSource: PathUser, Access: "r", Verdict: VerdictDeny, Layer: LayerLandlock,
		Rule: "filesystem.read_only_mounts", RuleSource: "policy.yaml:3:5", Remedy: "--ro /data/in.txt", Certainty: Certain,
	}
}

func TestSentence(t *testing.T) {
	mod := func(f func(e *Event)) *Event { e := denyEvent(); f(e); return e }
	addr := netip.MustParseAddr("192.0.2.1")
	tests := []struct {
		e    *Event
		want string
	}{
		{denyEvent(), "denied open /data/in.txt (EACCES; landlock, filesystem.read_only_mounts): add --ro /data/in.txt"},
		{mod(func(e *Event) { e.Access = "rw"; e.Certainty = Inferred }), "denied open for writing /data/in.txt (EACCES; probably landlock, filesystem.read_only_mounts): add --ro /data/in.txt"},
		{mod(func(e *Event) { e.Path = []byte("/etc/shadow") }), "denied open /etc/shadow (EACCES; landlock, filesystem.read_only_mounts)"},
		{mod(func(e *Event) { e.Path = []byte("/h/.ssh/config") }), "denied open /h/.ssh/config (EACCES; landlock, filesystem.read_only_mounts)"},
		{mod(func(e *Event) { e.Path = []byte("/x\n\x1b]0;"); e.Remedy = "" }), `denied open $'/x\n\x1b]0;' (EACCES; landlock, filesystem.read_only_mounts)`},
		{mod(func(e *Event) { e.Count = 12; e.Rule = "" }), "denied open /data/in.txt (EACCES; landlock): add --ro /data/in.txt, 12 times"},
		{mod(func(e *Event) { e.Path = []byte("/a"); e.PathLen = 5000; e.Layer = ""; e.Rule = "" }), "denied open /a... (5000 bytes) (EACCES)"},
		{&Event{Kind: KindRename, Path: []byte("/a b"), To: []byte("/c"), Verdict: VerdictDeny, Errno: 1, Layer: LayerNone}, "denied rename '/a b' to /c (EPERM; not by agentguard)"},
		{
			&Event{Kind: KindConnect, Family: "inet", Proto: "tcp", Addr: addr, Port: 443, Errno: 1, Layer: LayerBPF, Rule: "network.egress", Remedy: "--allow 192.0.2.1:443"},
			"denied connect 192.0.2.1:443 (EPERM; bpf, network.egress): add --allow 192.0.2.1:443",
		},
		{&Event{Kind: KindSend, Family: "inet6", Proto: "udp", Addr: netip.MustParseAddr("2001:db8::1"), Port: 53}, "denied send udp://[2001:db8::1]:53"},
		{&Event{Kind: KindConnect, Family: "unix", Path: []byte("\x00abs"), Layer: LayerLandlock}, `denied connect $'\000abs' (landlock)`},
		{&Event{Kind: KindDeny, Syscall: "ptrace", Errno: 1, Layer: LayerSeccomp}, "denied ptrace (EPERM; seccomp)"},
		{&Event{Kind: KindSocket, Family: "packet", Errno: 1, Layer: LayerSeccomp}, "denied socket packet (EPERM; seccomp)"},
		{&Event{Kind: KindSignal, Target: Proc{Pid: 77}, Errno: 1}, "denied signal process 77 (EPERM)"},
		{&Event{Kind: KindDeny, Syscall: "x\ny", Layer: "a b", Rule: "\x1b", Remedy: "\n"}, `denied $'x\ny' ('a b', $'\x1b'): add $'\n'`},
		{&Event{Kind: KindExecFail, Path: []byte("/bin/x"), Errno: 13}, "denied exec /bin/x (EACCES)"},
		{
			&Event{Kind: KindCall, Name: []byte("model"), Method: "DELETE", Path: []byte("/v1/x y"), Status: 403, Layer: LayerNetwork, Rule: "brokers.model.allow"},
			"denied call model DELETE '/v1/x y' (network, brokers.model.allow)",
		},
	}
	for _, tt := range tests {
		got := Sentence(tt.e)
		if got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
		assertSafe(t, "sentence", got)
	}
}

func TestRemedy(t *testing.T) {
	tests := []struct {
		e    Event
		want string
	}{
		{Event{Kind: KindOpen, Access: "r", Path: []byte("/data/a b")}, "--ro '/data/a b'"},
		{Event{Kind: KindOpen, Access: "rw", Path: []byte("/data/x")}, "--rw /data/x"},
		{Event{Kind: KindCreate, Access: "w", Path: []byte("/data/x")}, "--rw /data"},
		{Event{Kind: KindUnlink, Path: []byte("/x")}, ""}, // never the root directory
		{Event{Kind: KindChmod, Path: []byte("/data/x")}, "--rw /data/x"},
		{Event{Kind: KindExecFail, Path: []byte("/opt/x")}, "--ro /opt/x"},
		{Event{Kind: KindOpen, Access: "r", Path: []byte("rel/x")}, ""},
		{Event{Kind: KindOpen, Access: "r", Path: []byte("/a/../etc")}, ""},
		{Event{Kind: KindOpen, Access: "r", Path: []byte("/")}, ""},
		{Event{Kind: KindOpen, Access: "r", Path: []byte("/a\x1b")}, ""},
		{Event{Kind: KindOpen, Access: "r", Path: []byte("/a\xff")}, ""},
		{Event{Kind: KindOpen, Access: "r", Path: []byte("/a"), PathLen: 9}, ""},
		{Event{Kind: KindRename, Path: []byte("/a/x"), To: []byte("/h/.netrc")}, ""},
		{Event{Kind: KindConnect, Family: "inet", Proto: "tcp", Addr: netip.MustParseAddr("::ffff:192.0.2.1"), Port: 80}, "--allow 192.0.2.1:80"},
		{Event{Kind: KindSend, Family: "inet", Proto: "udp", Addr: netip.MustParseAddr("192.0.2.1"), Port: 123}, "--allow udp://192.0.2.1:123"},
		{Event{Kind: KindBind, Family: "inet", Addr: netip.MustParseAddr("192.0.2.1"), Port: 80}, ""},
		{Event{Kind: KindConnect, Family: "unix", Path: []byte("/run/app.sock")}, "--unix /run/app.sock"},
		{Event{Kind: KindConnect, Family: "unix", Path: []byte("\x00abstract")}, ""},
		{Event{Kind: KindConnect, Family: "unix", Path: []byte("/var/run/docker.sock")}, ""},
		{Event{Kind: KindDNS, Name: []byte("api.example")}, "--allow api.example:443"},
		{Event{Kind: KindDNS, Name: []byte("model.broker.internal")}, "--broker model"},
		{Event{Kind: KindDNS, Name: []byte("x.model.broker.internal")}, ""},
		{Event{Kind: KindConnect, Family: "inet", Proto: "tcp", Addr: netip.MustParseAddr("198.18.0.16"), Port: 443, Name: []byte("model.broker.internal")}, ""},
		{Event{Kind: KindDeny, Syscall: "mount"}, ""},
	}
	for _, tt := range tests {
		if got := Remedy(&tt.e); got != tt.want {
			t.Errorf("%s %q %s: got %q, want %q", tt.e.Kind, tt.e.Path, tt.e.Access, got, tt.want)
		}
	}
}

func TestAdvisable(t *testing.T) {
	no := `/home/u/.ssh /home/u/.ssh/id_ed25519 /home/u/.aws/credentials /home/u/.netrc /home/u/.npmrc /etc/shadow /etc/shadow- /etc/gshadow
		/home/u/id_rsa /srv/tls.key /srv/cert.PEM /run/docker.sock /var/run/docker.sock /home/u/.docker/config.json /home/u/.kube/config
		/home/u/.config/gcloud/x /home/u/.config/gh/hosts.yml /home/u/.gnupg/x /home/u/.git-credentials /app/.env /app/.env.local
		/proc/1/environ /proc/1/mem /dev/mem /run/secrets/x /var/run/secrets/kubernetes.io/serviceaccount/token /tmp/ssh-AbC/agent.12
		/home/u/.pypirc /home/u/.cargo/credentials.toml /etc/sudoers.d/x /HOME/U/.SSH/x`
	for _, p := range strings.Fields(no) {
		if Advisable([]byte(p)) {
			t.Errorf("%s: advice would hand out credentials", p)
		}
	}
	for _, p := range strings.Fields(`/data/x /usr/lib/x.so /etc/hosts /home/u/src/key.go /srv/environment /memory /identity /.key /app/agents /etc/passwd`) {
		if !Advisable([]byte(p)) {
			t.Errorf("%s: no advice", p)
		}
	}
}

// A call that takes a capability is refused because agentguard gives none: a file's own
// permissions are another matter.
func TestExplainCapabilities(t *testing.T) {
	for _, c := range []struct {
		e             Event
		layer, advice string
	}{
		{
			Event{Kind: KindDeny, Syscall: "prctl", Errno: 1, Layer: LayerDAC, Certainty: Certain},
			"dac: ordinary permissions, or the capability that the call takes, of which no run has any; no clause of the policy", "none: no policy gives a run capabilities",
		},
		{
			Event{Kind: KindOpen, Path: []byte("/srv/x"), Errno: 13, Layer: LayerDAC, Certainty: Certain},
			"dac: ordinary permissions, of the file or of the command's user; no clause of the policy", "none here: it is not agentguard that refuses",
		},
	} {
		d := &refusal{e: c.e}
		if d.layer() != c.layer || d.remedy() != c.advice {
			t.Errorf("%s: %q, %q", c.e.Kind, d.layer(), d.remedy())
		}
	}
}
