package special

import (
	"net/netip"
	"testing"
)

func TestSpecial(t *testing.T) {
	for _, s := range []string{
		"0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.168.1.1",
		"198.18.0.16", "224.0.0.1", "255.255.255.255", "168.63.129.16", "100.100.100.200",
		"::", "::1", "::7f00:1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1", "64:ff9b::a00:1", "64:ff9b:1::1", "2002:a00:1::", "2002:7f00:1::1",
		"2001:0:a00:1::", "2001:0:808:808::f5ff:fffe", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
		"::ffff:0:a9fe:a9fe", "5f00::1", "2001:db8:1:2:0:5efe:a00:1", "2001:db8:1:2:200:5efe:a9fe:a9fe",
	} {
		if !Contains(netip.MustParseAddr(s)) {
			t.Errorf("%s is not special", s)
		}
	}
	for _, s := range []string{"8.8.8.8", "172.15.255.255", "172.32.0.1", "100.128.0.1", "2606:4700::1", "64:ff9b::808:808", "2002:808:808::1", "::ffff:8.8.8.8", "168.63.129.17", "2001:db8:1:2:0:5efe:808:808", "2001:db8:1:2:100:5efe:a00:1"} {
		if Contains(netip.MustParseAddr(s)) {
			t.Errorf("%s is special", s)
		}
	}
}

// A granted range holds a special address on purpose only when it lies within that range.
func TestNames(t *testing.T) {
	for granted, want := range map[string]bool{"169.254.169.254/32": true, "169.254.0.0/16": true, "169.0.0.0/8": false} {
		if got := Names(netip.MustParsePrefix(granted), netip.MustParseAddr("169.254.169.254")); got != want {
			t.Errorf("%s: %v", granted, got)
		}
	}
}
