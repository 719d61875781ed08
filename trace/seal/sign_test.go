package seal

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"testing"
)

// Keys and signatures are crypto/ed25519's, byte for byte.
func TestSignsAsCryptoEd25519(t *testing.T) {
	for n := range 200 {
		seed, msg := make([]byte, ed25519.SeedSize), make([]byte, n)
		rand.Read(seed)
		rand.Read(msg)
		want := ed25519.NewKeyFromSeed(seed)
		got := derive(seed)
		if !bytes.Equal(got, want) {
			t.Fatalf("seed %x: key %x, want %x", seed, got, want)
		}
		if sig, want := sign(got, msg), ed25519.Sign(want, msg); !bytes.Equal(sig, want) {
			t.Fatalf("seed %x, message %x: signature %x, want %x", seed, msg, sig, want)
		}
	}
}

// RFC 8032, 7.1, test 3.
func TestSignVector(t *testing.T) {
	from := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	key := derive(from("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7"))
	if !bytes.Equal(key[32:], from("fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025")) {
		t.Errorf("public key %x", key[32:])
	}
	want := from("6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a")
	if got := sign(key, from("af82")); !bytes.Equal(got, want) {
		t.Errorf("signature %x", got)
	}
}

func FuzzSign(f *testing.F) {
	f.Add(make([]byte, ed25519.SeedSize), []byte("x"))
	f.Fuzz(func(t *testing.T, seed, msg []byte) {
		if len(seed) != ed25519.SeedSize {
			return
		}
		if !bytes.Equal(sign(derive(seed), msg), ed25519.Sign(ed25519.NewKeyFromSeed(seed), msg)) {
			t.Error("not as crypto/ed25519 signs")
		}
	})
}
