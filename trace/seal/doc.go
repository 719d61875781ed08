// Package seal makes a record tamper-evident and checks that it is whole.
//
// While a run lives, its lines are hashed in blocks, and the blocks are the
// leaves of an RFC 6962 tree (golang.org/x/mod/sumdb/tlog). About each second
// the head of the tree is signed as a checkpoint (golang.org/x/mod/sumdb/note,
// C2SP tlog-checkpoint), and at the end a statement about the whole run is
// signed as seal.json (in-toto Statement v1 in a DSSE envelope). The key lives
// as long as the run; the host's key certifies it. The host's log, another tree,
// has a leaf for each start and each seal, so that a run that is gone is missed.
//
// The formats are in docs/seal.md. Everything here works on any system, with
// the host's public key alone. Every parser takes bytes from whoever may have
// altered the record.
package seal
