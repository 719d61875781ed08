package bpf

import "testing"

// What the verifier goes through is what the first run of a host waits for, and it grows by the factor of a
// loop as soon as it knows a number in it. 17 600 instructions are the most on Linux 6.18.
func TestVerifiersWork(t *testing.T) {
	require(t)
	const most = 60_000
	sensor, err := loadSensorFor(Config{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sensor.Close()
	for name, prog := range sensor.Programs {
		info, err := prog.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, ok := info.VerifiedInstructions() // Linux 5.16
		t.Logf("%s: %d instructions", name, n)
		if !ok || n == 0 || n > most {
			t.Errorf("%s: the verifier went through %d instructions (known: %v), more than %d", name, n, ok, most)
		}
	}
}
