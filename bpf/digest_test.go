package bpf

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
)

// The digest is that of the objects that are built in.
func TestObjectsDigest(t *testing.T) {
	h := sha256.New()
	for _, b := range [][]byte{_EgressBytes, _SensorBytes, _UnixsockBytes, _ResolveBytes, _RefuseBytes} {
		h.Write(b)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != objectsDigest {
		t.Errorf("the objects have the digest %s, the constant says %s: go generate ./bpf", got, objectsDigest)
	}
}
