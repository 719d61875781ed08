package seal

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// Key is an Ed25519 key with the name that stands in its signatures. It is a
// note.Signer.
type Key struct {
	name string
	vkey string
	hash uint32
	priv ed25519.PrivateKey // nil after Erase
}

// NewKey makes a key. The name must not hold blanks or "+".
func NewKey(name string) (*Key, error) {
	_, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("seal: make a key: %w", err)
	}
	return newKey(name, priv)
}

func newKey(name string, priv ed25519.PrivateKey) (*Key, error) {
	vkey, err := note.NewEd25519VerifierKey(name, priv.Public().(ed25519.PublicKey))
	if err != nil {
		return nil, fmt.Errorf("seal: key %q: %w", name, err)
	}
	v, err := note.NewVerifier(vkey)
	if err != nil {
		return nil, fmt.Errorf("seal: key %q: %w", name, err)
	}
	return &Key{name: name, vkey: vkey, hash: v.KeyHash(), priv: priv}, nil
}

const privatePrefix = "AGENTGUARD-PRIVATE-KEY "

// MarshalPrivate returns the key as one line for a file that only root reads.
func (k *Key) MarshalPrivate() []byte {
	b := append([]byte(privatePrefix), k.name...)
	b = append(b, ' ')
	b = base64.StdEncoding.AppendEncode(b, k.priv.Seed())
	return append(b, '\n')
}

// ParsePrivate reads what MarshalPrivate wrote.
func ParsePrivate(b []byte) (*Key, error) {
	rest, ok := strings.CutPrefix(strings.TrimSuffix(string(b), "\n"), privatePrefix)
	name, enc, two := strings.Cut(rest, " ")
	seed, err := base64.StdEncoding.DecodeString(enc)
	if !ok || !two || err != nil || len(seed) != ed25519.SeedSize {
		return nil, errors.New("seal: not a private key of agentguard")
	}
	return newKey(name, ed25519.NewKeyFromSeed(seed))
}

// Name is what the key is called in its signatures.
func (k *Key) Name() string { return k.name }

// KeyHash is the short hash of name and key that signatures carry.
func (k *Key) KeyHash() uint32 { return k.hash }

// Public is the key for verification, as note.NewVerifier reads it.
func (k *Key) Public() string { return k.vkey }

// Sign signs msg with Ed25519 (RFC 8032).
func (k *Key) Sign(msg []byte) ([]byte, error) {
	if k.priv == nil {
		return nil, fmt.Errorf("seal: key %s was erased", k.name)
	}
	return ed25519.Sign(k.priv, msg), nil
}

// Erase overwrites the private key. It is the best that Go can do: copies that
// crypto/ed25519 made while it signed are freed, not overwritten.
func (k *Key) Erase() {
	clear(k.priv)
	k.priv = nil
}

// ID names a key as the keyid of a DSSE signature: its name, "+", and the short
// hash in eight hexadecimal digits, the first two parts of its public form.
func (k *Key) ID() string { return keyID(k) }

func keyID(v interface {
	Name() string
	KeyHash() uint32
},
) string {
	return fmt.Sprintf("%s+%08x", v.Name(), v.KeyHash())
}

// Keys are the hosts' public keys that a reader trusts.
type Keys []note.Verifier

// ParseKeys reads public keys, one a line; empty lines and those that begin
// with # are skipped.
func ParseKeys(text string) (Keys, error) {
	var keys Keys
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		v, err := note.NewVerifier(line)
		if err != nil {
			return nil, fmt.Errorf("seal: %q is not a public key (agentguard keys show prints one): %w", line, err)
		}
		keys = append(keys, v)
	}
	return keys, nil
}

// by returns the key with that keyid, or nil.
func (k Keys) by(id string) note.Verifier {
	for _, v := range k {
		if keyID(v) == id {
			return v
		}
	}
	return nil
}

func (k Keys) verifiers() note.Verifiers { return note.VerifierList(k...) }

// openNote checks a note against the keys. A note by none of them is a
// *ForeignKeyError.
func openNote(text []byte, keys Keys) (*note.Note, error) {
	n, err := note.Open(text, keys.verifiers())
	if unverified := new(note.UnverifiedNoteError); errors.As(err, &unverified) {
		id := "nobody"
		if sigs := unverified.Note.UnverifiedSigs; len(sigs) > 0 {
			id = fmt.Sprintf("%s+%08x", sigs[0].Name, sigs[0].Hash)
		}
		return nil, &ForeignKeyError{ID: id}
	}
	if err != nil {
		return nil, err
	}
	return n, canonical(n)
}

// ForeignKeyError says that something was signed by a key that the reader does
// not trust. ID is its name and hash, as notes have them.
type ForeignKeyError struct{ ID string }

func (e *ForeignKeyError) Error() string {
	return fmt.Sprintf("signed by %q, which is none of the trusted keys", e.ID)
}
