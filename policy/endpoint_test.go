package policy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseEndpoint(t *testing.T) {
	for text, want := range map[string]Endpoint{
		"api.example.com:443":                  {Proto: "tcp", Host: "api.example.com", Port: 443, PortEnd: 443},
		"API.Example.COM:443":                  {Proto: "tcp", Host: "api.example.com", Port: 443, PortEnd: 443},
		"localhost:80":                         {Proto: "tcp", Host: "localhost", Port: 80, PortEnd: 80},
		"_srv._tcp.example.com:80":             {Proto: "tcp", Host: "_srv._tcp.example.com", Port: 80, PortEnd: 80},
		"*.pypi.org:443":                       {Proto: "tcp", Host: "*.pypi.org", Port: 443, PortEnd: 443},
		"tcp://a.example:1-65535":              {Proto: "tcp", Host: "a.example", Port: 1, PortEnd: 65535},
		"UDP://192.0.2.1:123":                  {Proto: "udp", Prefix: "192.0.2.1/32", Port: 123, PortEnd: 123},
		"10.1.0.0/16:5432":                     {Proto: "tcp", Prefix: "10.1.0.0/16", Port: 5432, PortEnd: 5432},
		"[2001:DB8::1]:443":                    {Proto: "tcp", Prefix: "2001:db8::1/128", Port: 443, PortEnd: 443},
		"2001:db8::/32:443":                    {Proto: "tcp", Prefix: "2001:db8::/32", Port: 443, PortEnd: 443},
		"[2001:db8::]/32:443":                  {Proto: "tcp", Prefix: "2001:db8::/32", Port: 443, PortEnd: 443},
		"[2001:db8::/32]:443":                  {Proto: "tcp", Prefix: "2001:db8::/32", Port: 443, PortEnd: 443},
		"Bücher.example:443":                   {Proto: "tcp", Host: "xn--bcher-kva.example", Port: 443, PortEnd: 443},
		"*.bücher.example:443":                 {Proto: "tcp", Host: "*.xn--bcher-kva.example", Port: 443, PortEnd: 443},
		"xn--bcher-kva.example:443":            {Proto: "tcp", Host: "xn--bcher-kva.example", Port: 443, PortEnd: 443},
		strings.Repeat("a", 63) + ".example:1": {Proto: "tcp", Host: strings.Repeat("a", 63) + ".example", Port: 1, PortEnd: 1},
	} {
		want.Text = text
		got, p := parseEndpoint(value{text: text})
		if p != nil {
			t.Errorf("%q: %v", text, p)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
		again, p := parseEndpoint(value{text: endpointText(got)})
		again.Text = text
		if p != nil || again != got {
			t.Errorf("%q prints as %q and reads as %+v, %v", text, endpointText(got), again, p)
		}
	}
}

func TestParseEndpointRefuses(t *testing.T) {
	for _, text := range []string{
		"", ":", ":443", "a", "a:", "a:0", "a:-1", "a:+1", "a:0443", "a:1-010", "a:65536", "a:1-0", "a:1-", "a:-", "a:1-2-3", "a: 1", "a :1", "a:443 ",
		"*:1", "*.:1", "*.com:1", "*.co.uk:1", "*.com.au:1", "**.a.b:1", "*a.b.c:1", "a.*:1", ".a:1", "a.:1", "a..b:1", "-a.b:1", "a-.b:1",
		"a_b$:1", "a/b:1", "user@host:1", "1.2.3:1", "1.2.3.4.5:1", "01.2.3.4:1", "1.2.3.4/33:1", "1.2.3.4/8:1", "1.0.0.0/7:1", "1.2.3.4/:1",
		"::1:443", "[::1]", "[::1]443", "[::1:443", "::1]:443", "[[::1]]:443", "a[::1]:443", "[]:443", "[1.2.3.4]:443", "[a.example]:443", "[::1%lo]:443",
		"[::ffff:1.2.3.4]:1", "::ffff:1.2.3.0/120:1", "2000::/3:1", "[::]:1", "0.0.0.0:1", "0.0.0.0/32:1", "::/128:1",
		"0x7f000001:1", "127.0.0.0x1:1", "0X7F.1:1", "127.0x1:1", "0x:1", "*.0.0.0x1:1",
		"http://a.example", "https://a.example:443/", "ssh://a:22", "://a:1", "udp://", "udp://udp://a:1", "\u200bx.example:1", "a\u2044b.example:1", "\uff45xample.com:1", "a\u3002b.example:1", "a\x00b:1", "a\nb:1",
		strings.Repeat("a", 64) + ".example:1", strings.Repeat("a.", 127) + "example:1",
	} {
		if e, p := parseEndpoint(value{text: text}); p == nil {
			t.Errorf("%q is read as %+v", text, e)
		}
	}
}

// A registry of a country that is not in the table stays usable.
func TestWildcardNames(t *testing.T) {
	for text, ok := range map[string]bool{
		"*.example.com": true, "*.example.co.uk": true, "*.me.github.io": true, "*.co.example": true,
		"*.io": false, "*.github.io": false, "*.s3.amazonaws.com": false, "*.kawasaki.jp": false, "*.xn--p1ai": false, "*.ac.jp": false, "*.com.br": false,
	} {
		if _, p := parseName(text); (p == nil) != ok {
			t.Errorf("%q: %v", text, p)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		most, entry string
		want        bool
	}{
		{"a.example:443", "a.example:443", true},
		{"a.example:443", "b.example:443", false},
		{"a.example:443", "a.example:80", false},
		{"a.example:1-1000", "a.example:443-444", true},
		{"a.example:1-1000", "a.example:443-1001", false},
		{"a.example:443", "udp://a.example:443", false},
		{"*.b.example:443", "a.b.example:443", true},
		{"*.b.example:443", "*.a.b.example:443", true},
		{"*.b.example:443", "*.b.example:443", true},
		{"*.b.example:443", "b.example:443", false},
		{"*.b.example:443", "xb.example:443", false},
		{"a.b.example:443", "*.b.example:443", false},
		{"10.0.0.0/8:1", "10.1.0.0/16:1", true},
		{"10.0.0.0/8:1", "10.1.2.3:1", true},
		{"10.1.0.0/16:1", "10.0.0.0/8:1", false},
		{"10.0.0.0/8:1", "11.0.0.1:1", false},
		{"10.0.0.0/8:1", "[2001:db8::1]:1", false},
		{"169.0.0.0/8:80", "169.1.1.1:80", true},
		{"169.0.0.0/8:80", "169.254.169.254:80", false}, // holds it by the way only
		{"169.254.0.0/16:80", "169.254.169.254:80", true},
		{"169.254.169.254:80", "169.254.169.254:80", true},
		{"192.0.0.0/8:80", "192.168.0.0/16:80", false},
		{"[64:ff9b::/96]:80", "[64:ff9b::a9fe:a9fe]:80", false},
		{"[64:ff9b::/96]:80", "[64:ff9b::808:808]:80", true},
		{"10.0.0.0/8:1", "a.example:1", false},
		{"a.example:1", "10.0.0.1:1", false},
		{"*.example.com:1", "10.0.0.1:1", false},
	} {
		most, p1 := parseEndpoint(value{text: c.most})
		entry, p2 := parseEndpoint(value{text: c.entry})
		if p1 != nil || p2 != nil {
			t.Fatal(c, p1, p2)
		}
		if got := endpoints().covers(most, entry); got != c.want {
			t.Errorf("%s covers %s: %v", c.most, c.entry, got)
		}
	}
}
