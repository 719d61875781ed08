package supervisor

import (
	"encoding/json"
	"strings"
	"testing"
)

// A plan has the proxy of the caller's environment, and nothing of its credentials.
func TestPlanProxy(t *testing.T) {
	for _, c := range []struct {
		environ []string
		flag    string
		want    string // address and variable
	}{
		{[]string{"HTTPS_PROXY=http://u:secret@proxy.example:3128", "no_proxy=.corp.example"}, "", "proxy.example:3128 HTTPS_PROXY .corp.example"},
		{[]string{"ALL_PROXY=proxy.example", "http_proxy=other.example"}, "", "proxy.example:80 ALL_PROXY "},
		{[]string{"HTTPS_PROXY=http://a.example", "https_proxy=http://b.example", "NO_PROXY=x", "no_proxy=y"}, "", "b.example:80 https_proxy y"},
		{[]string{"HTTPS_PROXY=http://a.example"}, "proxy=none", ""},
		{[]string{"HTTPS_PROXY=socks5://u:secret@a.example"}, "proxy=none", ""},
		{[]string{"http_proxy=http://a.example", "https_proxy="}, "", ""},
	} {
		flags := []string{"allow=a.example:1"}
		if c.flag != "" {
			flags = append(flags, c.flag)
		}
		in := fakeInput(policyOf(t, flags...))
		in.host.Info.BPF, in.host.Info.BPFError = true, ""
		in.environ = c.environ
		p, err := newPlan(in)
		must(t, err)
		got := ""
		if e := p.Egress.Proxy; e != nil {
			got = e.Address + " " + e.Variable + " " + e.NoProxy
		}
		if got != c.want {
			t.Errorf("%q: %q, want %q", c.environ, got, c.want)
		}
		b, err := json.Marshal(p)
		must(t, err)
		var text strings.Builder
		must(t, p.WriteText(&text))
		if strings.Contains(string(b)+text.String(), "secret") {
			t.Errorf("%q: the plan has the credentials", c.environ)
		}
		cfg := p.Egress.dialConfig(in.caller, true, nil)
		if (cfg.Proxy != nil) != (c.want != "") {
			t.Errorf("%q: the process is told %v", c.environ, cfg.Proxy != nil)
		}
	}
	for _, url := range []string{"socks5://u:secret@h:1", "https://u:secret@h", "http://u:secret@:1"} {
		in := fakeInput(policyOf(t, "allow=a.example:1"))
		in.host.Info.BPF, in.host.Info.BPFError = true, ""
		in.environ = []string{"https_proxy=" + url}
		_, err := newPlan(in)
		if r := refusal(t, err); r.Clause != "network.proxy" || strings.Contains(r.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
}
