package gateway

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/action"
	"github.com/agentguard/agentguard/internal/broker"
)

// forms are texts that hold a secret.
func forms(secret string) []string {
	quoted, _ := json.Marshal(secret)
	list := []string{
		secret, url.QueryEscape(secret), url.PathEscape(secret), hex.EncodeToString([]byte(secret)), string(quoted),
		strings.ReplaceAll(secret, "/", `\/`),
	}
	for _, around := range []string{"", "a", "ab", "abc", "user:"} {
		for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding, base64.RawURLEncoding} {
			list = append(list, enc.EncodeToString([]byte(around+secret)), enc.EncodeToString([]byte(around+secret+"tail")))
		}
	}
	return list
}

func scrubbed(secret, text string, cuts ...int) string {
	var out bytes.Buffer
	s := &scrubber{dst: &out, needles: action.Echoes([]byte(secret))}
	for _, at := range cuts {
		_, _ = s.Write([]byte(text[:at]))
		text = text[at:]
	}
	_, _ = s.Write([]byte(text))
	_ = s.flush()
	return out.String()
}

// Every form is hidden in whatever two pieces it comes.
func TestScrubForms(t *testing.T) {
	for _, secret := range []string{canary, "aaaaaaaa", "abababab/+", `quo"ted<&>back\slash`, "ü-not-ascii-ü", strings.Repeat("k", 1000)} {
		for _, form := range forms(secret) {
			text := "before " + form + " after"
			for at := 0; at <= len(text); at += 1 + len(text)/50 {
				got := scrubbed(secret, text, at)
				if len(got) != len(text) || !strings.Contains(got, "*****") || strings.Contains(got, form) {
					t.Fatalf("%q cut at %d: %q", text, at, got)
				}
			}
		}
	}
}

// What is no needle is passed on at once, and as it is.
func TestScrubHoldsNothingElse(t *testing.T) {
	var out bytes.Buffer
	s := &scrubber{dst: &out, needles: action.Echoes([]byte(canary))}
	_, _ = s.Write([]byte("data: x\n\n"))
	if out.String() != "data: x\n\n" {
		t.Errorf("%q", out.String())
	}
	_, _ = s.Write([]byte("sk-can"))
	if out.String() != "data: x\n\n" {
		t.Errorf("the beginning of the credential was passed on: %q", out.String())
	}
	_, _ = s.Write([]byte("did"))
	if out.String() != "data: x\n\nsk-candid" {
		t.Errorf("%q", out.String())
	}
}

func FuzzScrub(f *testing.F) {
	f.Add("secret-1", "a secret-1 b secret-secret-1", uint8(3), uint8(9))
	f.Add("aaaaaaaa", "aaaaaaaaaaaaaaab", uint8(1), uint8(7))
	f.Add("abababab", "ababababababab", uint8(5), uint8(1))
	f.Fuzz(func(t *testing.T, secret, text string, a, b uint8) {
		if len(secret) < broker.MinSecret || strings.Contains(secret, "*") {
			return
		}
		first := min(int(a), len(text))
		second := min(int(b), len(text)-first)
		got := scrubbed(secret, text, first, second)
		if whole := scrubbed(secret, text); got != whole {
			t.Errorf("in pieces %q, whole %q", got, whole)
		}
		if len(got) != len(text) || strings.Contains(got, secret) {
			t.Errorf("%q of %q", got, text)
		}
		if clean := !holds(text, action.Echoes([]byte(secret))); clean && got != text {
			t.Errorf("%q became %q", text, got)
		}
	})
}
