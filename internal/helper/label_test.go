package helper

import (
	"os"
	"strings"
	"testing"
)

// A label that means less than the rights of its user is refused, whatever the module.
func TestLabels(t *testing.T) {
	allowed := []string{"trusted (enforce)", "my_agent_t"}
	for label, confined := range map[string]bool{
		"":                                  false,
		"unconfined":                        false,
		"chrome (unconfined)":               false, // Ubuntu's, which only names it
		"/usr/bin/man (complain)":           false,
		"/usr/bin/man (enforce)":            true,
		"trusted (enforce)":                 false,
		"trusted":                           true,
		"trusted (enforce)//&x":             true,
		"snap.code.code (enforce)":          true,
		"a//&:lxd-x:unconfined (enforce)":   true,
		"a//&unconfined (mixed)":            true,
		"x (kill)":                          true,
		" (unconfined)":                     true,
		"unconfined (enforce)":              true,
		"unconfined\n":                      true, // trimmed where it is read
		"docker-default (enforce)":          true,
		"system_u:system_r:container_t:s0":  true,
		"user_u:user_r:user_t:s0":           true,
		"unconfined_u:unconfined_r:other_t": true,
		"unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023": false,
		"system_u:system_r:unconfined_service_t:s0":             false,
		"staff_u:staff_r:my_agent_t:s0":                         false,
		"_":                                                     false,
		"Agent":                                                 true,
	} {
		if got := confines(label, allowed); got != confined {
			t.Errorf("%q: %v", label, got)
		}
	}
}

// This process is as confined as the host says, and has a label or none.
func TestOwnLabel(t *testing.T) {
	a, _ := connected(t)
	p, err := Identify(a)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b, _ := os.ReadFile("/proc/self/attr/current")
	own := strings.TrimRight(string(b), "\x00\n")
	if err := p.Unconfined(nil); (err != nil) != confines(own, nil) && !permissive() {
		t.Errorf("label %q: %v", own, err)
	}
	if err := p.Unconfined([]string{own, p.Label}); err != nil {
		t.Error(err)
	}
	p.Label = "jail (enforce)"
	if err := p.Unconfined([]string{own}); err == nil || !strings.Contains(err.Error(), "jail (enforce)") {
		t.Errorf("%v", err)
	}
}

// A configuration is read as it is written, or not at all.
func TestConfig(t *testing.T) {
	for text, bad := range map[string]string{
		"": "", "audit_group: auditors\nlabels: [a, \"b (enforce)\"]\nlog_bytes: 1048576\nlog_keep: 1\n": "",
		"audit: x\n": "audit", "log_bytes: 10\n": "log_bytes", "log_keep: 0\n": "log_keep", "log_keep: 1000\n": "log_keep", "- 1\n": "mapping",
	} {
		c := &Config{}
		if err := c.parse(strings.NewReader(text)); (err == nil) != (bad == "") || err != nil && !strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", text, err)
		}
	}
	name := t.TempDir() + "/helper.yaml"
	if c, err := ReadConfig(name); err != nil || c.AuditGroup != "" {
		t.Errorf("without a file: %+v %v", c, err)
	}
	if err := os.WriteFile(name, []byte("audit_group: x\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o666); err != nil {
		t.Fatal(err)
	}
	if c, err := ReadConfig(name); err == nil || c.AuditGroup != "" {
		t.Errorf("a file that others can write: %+v", c)
	}
}
