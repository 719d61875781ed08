package action

// Secret is the value of a credential. Printed or encoded in any way it is
// "***"; only Reveal gives it away.
type Secret struct{ b []byte }

// NewSecret takes over b.
func NewSecret(b []byte) *Secret { return &Secret{b} }

// Reveal returns the value, which Erase overwrites; nil for none.
func (s *Secret) Reveal() []byte {
	if s == nil {
		return nil
	}
	return s.b
}

// Erase overwrites the value. Copies that the standard library made of it, such
// as a header's, are out of reach: the process that had them ends.
func (s *Secret) Erase() {
	if s != nil {
		clear(s.b)
		s.b = nil
	}
}

// Hidden stands for a secret wherever something is shown.
const Hidden = "***"

// String returns Hidden.
func (s *Secret) String() string { return Hidden }

// GoString returns Hidden.
func (s *Secret) GoString() string { return Hidden }

// MarshalText returns Hidden.
func (s *Secret) MarshalText() ([]byte, error) { return []byte(Hidden), nil }
