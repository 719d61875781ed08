package supervisor

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// doctorReport is what --json and the text are, for a report with each state.
var doctorReport = report{
	Schema: 1, Version: "1.2.3", Kernel: "6.1.0", Machine: "x86_64", UID: 1000,
	Inside: inside{
		VM:       sign{Found: true, Name: "QEMU", Evidence: []string{"cpuinfo has the hypervisor flag"}},
		Envelope: sign{Evidence: []string{}}, Container: sign{Evidence: []string{}},
	},
	Modes: []modeReport{{
		Mode: ModeUserNS, Why: "<no>", Remedy: "a setting", Layers: []modeLayer{{"files", "mount view"}}, Record: "degraded",
		Lacks: []Missing{{"record", "no BPF", "the helper"}},
	}},
	Layers: []cell{
		{"files.mount-view", "files", "mount view", cellOK, "works <well>", ""},
		{"limits.memory", "limits", "memory", cellMissing, "none", "a kernel with CONFIG_MEMCG=y"},
		{"agentguard.debris", "agentguard", "debris", cellUnknown, "only root can try this", rootRemedy},
	},
	Advice: Advice{
		V: 1, Advice: AdviseAirgap, Why: []string{"it has a network"}, Do: []string{"agentguard exec -- COMMAND"},
		Evidence: []Finding{{About: "links", Holds: true, Text: "routes by eth0"}},
	},
}

const doctorJSON = `{
  "schema": 1,
  "version": "1.2.3",
  "kernel": "6.1.0",
  "machine": "x86_64",
  "uid": 1000,
  "inside": {
    "vm": {
      "found": true,
      "name": "QEMU",
      "evidence": [
        "cpuinfo has the hypervisor flag"
      ]
    },
    "container": {
      "found": false,
      "evidence": []
    },
    "envelope": {
      "found": false,
      "evidence": []
    }
  },
  "modes": [
    {
      "mode": "userns",
      "available": false,
      "chosen": false,
      "why": "<no>",
      "remedy": "a setting",
      "layers": [
        {
          "resource": "files",
          "layers": "mount view"
        }
      ],
      "record": "degraded",
      "lacks": [
        {
          "guarantee": "record",
          "why": "no BPF",
          "remedy": "the helper"
        }
      ]
    }
  ],
  "layers": [
    {
      "id": "files.mount-view",
      "resource": "files",
      "layer": "mount view",
      "state": "ok",
      "finding": "works <well>"
    },
    {
      "id": "limits.memory",
      "resource": "limits",
      "layer": "memory",
      "state": "missing",
      "finding": "none",
      "remedy": "a kernel with CONFIG_MEMCG=y"
    },
    {
      "id": "agentguard.debris",
      "resource": "agentguard",
      "layer": "debris",
      "state": "unknown",
      "finding": "only root can try this",
      "remedy": "sudo agentguard doctor"
    }
  ],
  "healthy": false,
  "advice": {
    "v": 1,
    "advice": "airgap",
    "why": [
      "it has a network"
    ],
    "do": [
      "agentguard exec -- COMMAND"
    ],
    "evidence": [
      {
        "about": "links",
        "holds": true,
        "text": "routes by eth0"
      }
    ]
  }
}
`

const doctorText = `agentguard 1.2.3 on Linux 6.1.0 (x86_64), examined by uid 1000
inside a virtual machine, QEMU: cpuinfo has the hypervisor flag
no container shows itself
no other envelope
advice: airgap, because it has a network (agentguard advise)

           USER NAMESPACE
available  no
           <no>
files      mount view
record     degraded
lacks      record
to change  a setting

ok       files       mount view  works <well>
missing  limits      memory      none
                                 to change: a kernel with CONFIG_MEMCG=y
unknown  agentguard  debris      only root can try this

1 ok, 0 thin, 1 missing, 1 unknown: a run with the default policy would be refused or unrecorded
`

func TestDoctorGolden(t *testing.T) {
	d := &Diagnosis{doctorReport}
	var text, js bytes.Buffer
	if err := errors.Join(d.WriteText(&text), d.WriteJSON(&js)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(doctorJSON, js.String()); diff != "" {
		t.Errorf("JSON, a stable schema (docs/doctor.md):\n%s", diff)
	}
	if diff := cmp.Diff(doctorText, text.String()); diff != "" {
		t.Errorf("text:\n%s", diff)
	}
}
