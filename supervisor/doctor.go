package supervisor

import (
	"io"
)

// Diagnosis is what doctor found.
type Diagnosis struct{}

// Diagnose probes the host.
func Diagnose() *Diagnosis { return &Diagnosis{} }

// WriteText writes it for a reader.
func (d *Diagnosis) WriteText(io.Writer) error { return nil }

// WriteJSON writes it for machines.
func (d *Diagnosis) WriteJSON(io.Writer) error { return nil }

// Healthy reports whether nothing is missing.
func (d *Diagnosis) Healthy() bool { return true }
