package seal_test

import (
	"fmt"
	"os"

	"github.com/agentguard/agentguard/trace/seal"
)

// hostKey is what the host printed: agentguard keys show.
const hostKey = "agentguard/host.test+06f65d25+ASdCOeg5HYK9PkEFF7Pcv37bEOamFiXvoMTyWI3d0rdD"

// A proof shows one record of a run to somebody who has only the host's public key.
func ExampleOpenProof() {
	keys, err := seal.ParseKeys(hostKey)
	if err != nil {
		fmt.Println(err)
		return
	}
	b, err := os.ReadFile("testdata/golden/proof.json") // agentguard trace prove 42
	if err != nil {
		fmt.Println(err)
		return
	}
	p, c, err := seal.OpenProof(b, keys)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("run %s, of %d records:\n%s\n", p.Run, c.Records, p.Line)
	// Output:
	// run 20261129-163624-7f3k2q, of 288 records:
	// {"v":1,"seq":42,"mono":42,"wall":"2026-11-29T16:36:24.123456830Z","kind":"open","phase":"command","proc":"1a2b3c4d-9-7","pid":7,"uid":0,"path":"/usr/lib/x42","path_source":"kernel","access":"r"}
}

// Verify reads all of a run's directory, which may have been copied from anywhere.
func ExampleVerify() {
	keys, err := seal.ParseKeys(hostKey)
	if err != nil {
		fmt.Println(err)
		return
	}
	rep, err := seal.Verify(os.DirFS("evidence/runs/20261129-163624-7f3k2q"), keys, nil)
	if err != nil { // it could not be read; all else is in the report
		fmt.Println(err)
		return
	}
	fmt.Println(rep.Verdict)
	for _, f := range rep.Faults {
		fmt.Println(f)
	}
}

// A key signs notes; its public half, one line, is all that a reader needs.
func ExampleNewKey() {
	key, err := seal.NewKey("agentguard/host.example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer key.Erase()
	keys, err := seal.ParseKeys(key.Public())
	fmt.Println(len(keys), keys[0].Name(), err)
	// Output:
	// 1 agentguard/host.example <nil>
}
