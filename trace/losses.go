package trace

import "slices"

// Losses sums up, by class and cause, what is missing from the record: losses
// that were appended, and what this Writer could not keep.
func (t *Writer) Losses() []Loss {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := slices.Clone(t.told)
	for _, l := range t.losses {
		out = addLoss(out, l)
	}
	return out
}

// addLoss adds l to the sum of its class and cause; where is forgotten.
func addLoss(sums []Loss, l Loss) []Loss {
	for i := range sums {
		if s := &sums[i]; s.Class == l.Class && s.Cause == l.Cause {
			s.Count += l.Count
			s.Bytes += l.Bytes
			return sums
		}
	}
	return append(sums, Loss{Class: l.Class, Cause: l.Cause, Count: l.Count, Bytes: l.Bytes, CPU: -1})
}
