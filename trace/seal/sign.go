package seal

import (
	"crypto/ed25519"
	"crypto/sha512"

	"filippo.io/edwards25519"
)

// Ed25519 (RFC 8032, 5.1.5 and 5.1.6) without crypto/ed25519's table of multiples of
// the base point. Every process makes that table anew, which takes as long as forty
// signatures, and a run signs five times. Both give the same bytes; the arithmetic
// is by the same author, in constant time too, and only signing is done here:
// what verifies is crypto/ed25519.

// derive is crypto/ed25519.NewKeyFromSeed.
func derive(seed []byte) ed25519.PrivateKey {
	s, _ := secrets(seed)
	public := new(edwards25519.Point).ScalarMult(s, edwards25519.NewGeneratorPoint())
	return append(append(make(ed25519.PrivateKey, 0, ed25519.PrivateKeySize), seed...), public.Bytes()...)
}

// sign is crypto/ed25519.Sign.
func sign(priv ed25519.PrivateKey, msg []byte) []byte {
	s, prefix := secrets(priv.Seed())
	public := priv[ed25519.SeedSize:]
	r := hashed(prefix, msg)
	point := new(edwards25519.Point).ScalarMult(r, edwards25519.NewGeneratorPoint()).Bytes()
	k := hashed(point, public, msg)
	return append(point, edwards25519.NewScalar().MultiplyAdd(k, s, r).Bytes()...)
}

// secrets are the scalar and the prefix that a seed of 32 bytes stands for.
func secrets(seed []byte) (*edwards25519.Scalar, []byte) {
	h := sha512.Sum512(seed)
	s, err := edwards25519.NewScalar().SetBytesWithClamping(h[:32])
	if err != nil { // of another length than 32 bytes
		panic(err)
	}
	return s, h[32:]
}

// hashed is the SHA-512 digest of all parts as a scalar.
func hashed(parts ...[]byte) *edwards25519.Scalar {
	h := sha512.New()
	for _, p := range parts {
		h.Write(p)
	}
	s, err := edwards25519.NewScalar().SetUniformBytes(h.Sum(nil))
	if err != nil { // of another length than 64 bytes
		panic(err)
	}
	return s
}
