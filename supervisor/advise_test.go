package supervisor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAdviceSplits(t *testing.T) {
	for _, c := range []struct {
		flags []string
		holds []string // of the needs
	}{
		{[]string{"allow=api.example.com:443"}, []string{"needs-network"}},
		{[]string{"env=TZ=UTC", "unix=/run/user/1000/agent.sock"}, []string{"needs-secret"}},
	} {
		a := Advise(Question{Policy: policyOf(t, c.flags...), Disposable: true})
		var holds []string
		for _, e := range a.Evidence {
			if e.Holds && strings.HasPrefix(e.About, "needs-") {
				holds = append(holds, e.About)
			}
		}
		if a.Advice != AdviseSplit || !slices.Equal(holds, c.holds) || len(a.Why) == 0 || len(a.Do) == 0 {
			t.Errorf("%v: %+v", c.flags, a)
		}
	}
}

// Whatever this machine is: with a credential in the environment the envelope is
// never said to be superfluous.
func TestAdviceWithCredentials(t *testing.T) {
	a := Advise(Question{Policy: policyOf(t), Environ: []string{"GITHUB_TOKEN=x"}, Disposable: true})
	if a.Advice != AdviseAirgap || !strings.Contains(a.Why[0], "it has credentials") || len(a.Evidence) != 6 {
		t.Errorf("%+v", a)
	}
	if strings.Contains(strings.Join(a.Why, ""), "=x") {
		t.Error("it repeats the value")
	}
}

func TestAdviceJudges(t *testing.T) {
	for _, c := range []struct {
		s    signs
		want string
	}{
		{signs{vm: true, disposable: true}, AdviseMaySkip},
		{signs{vm: true}, AdviseAirgap},
		{signs{disposable: true}, AdviseAirgap},
		{signs{vm: true, disposable: true, links: true}, AdviseAirgap},
		{signs{vm: true, disposable: true, credentials: true}, AdviseAirgap},
		{signs{vm: true, disposable: true, needsNetwork: true}, AdviseSplit},
		{signs{vm: true, disposable: true, needsSecret: true}, AdviseSplit},
	} {
		var a Advice
		if a.judge(c.s); a.Advice != c.want || len(a.Why) == 0 || len(a.Do) == 0 {
			t.Errorf("%+v: %+v", c.s, a)
		}
	}
}

func TestFindings(t *testing.T) {
	proc, root, home := t.TempDir(), t.TempDir(), t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(proc+"/route", "Iface\tDestination\tGateway\n")
	write(proc+"/ipv6_route", "00000000000000000000000000000001 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000002 00000000 80200001       lo\n")
	if f := linksFinding(proc, proc+"/vsock"); f.Holds {
		t.Errorf("%+v", f)
	}
	write(proc+"/vsock", "")
	if f := linksFinding(proc, proc+"/vsock"); !f.Holds || !strings.Contains(f.Text, "monitor") {
		t.Errorf("%+v", f)
	}
	write(proc+"/route", "Iface\tDestination\tGateway\neth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
	if f := linksFinding(proc, proc+"/none"); !f.Holds || f.Text != "routes by eth0" {
		t.Errorf("%+v", f)
	}
	if f := credentialsFinding([]string{"LANG=C", "EMPTY_TOKEN="}, home, root); f.Holds {
		t.Errorf("%+v", f)
	}
	write(home+"/.ssh/id_ed25519", "")
	write(root+"/run/secrets/db", "")
	f := credentialsFinding([]string{"DB_PASSWORD=x"}, home, root)
	for _, want := range []string{"DB_PASSWORD", "/.ssh/id_ed25519", "/run/secrets/db"} {
		if !f.Holds || !strings.Contains(f.Text, want) {
			t.Errorf("%+v lacks %s", f, want)
		}
	}
}
