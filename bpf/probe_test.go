package bpf

import "testing"

func TestProbe(t *testing.T) {
	require(t)
	s := Probe()
	for _, a := range s.Abilities {
		t.Logf("%s: %v", a.Name, a.Err)
	}
	t.Log("active security modules:", s.LSMs)
	for _, name := range []string{"cgroup", "tp_btf"} {
		if err := s.Err(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
