// Package secure protects the packets of a tunnel between two hosts that know
// each other's public keys: a handshake, a seal for each packet, and a window
// that lets no packet in twice. It does no I/O, reads no clock, starts nothing.
//
// # Theory of operation
//
// Keys are Curve25519's, in the text form of WireGuard, so `wg genkey` makes
// them too. Each side is given its own private and the other's public key, and
// no other key is ever accepted.
//
// The handshake is Noise_IK_25519_ChaChaPoly_BLAKE2s with the prologue
// "cleat tunnel 2": two messages, no state machine beyond them.
//
//	initiator → responder   e, es, s, ss, payload    97 to 297 bytes
//	responder → initiator   e, ee, se, payload       49 to 249 bytes
//
// ChaChaPoly and BLAKE2s, as in WireGuard: they take the same time whatever the
// key is on every processor, also where there is no instruction for AES, and a
// handshake is too rare for their speed to matter.
//
// Who initiates follows from the keys alone (Initiates), so two hosts that start
// at once do not make two sessions. The first byte of each payload is this
// package's: which ciphers the initiator can do well, and which one the
// responder picked. The rest is the caller's, encrypted and authenticated; what
// is in the first message can be read by who later gets the responder's private
// key, all else cannot (Noise section 7.7).
//
// A message that is forged, altered, cut short, for another key, for the other
// role or another version is ErrHandshake, and changes nothing: Finish may be
// called with the next one. A recorded first message can be sent again; Respond
// then makes a session whose keys only the true initiator could compute, for it
// depends on an ephemeral key that the replayer does not have. So the caller
//
//   - keeps a session that Respond made pending, and the one before in use,
//     until a packet has been opened with the new one;
//   - gives a first message that comes again, over another path or because the
//     answer was lost, the answer it gave before, and makes no second session;
//   - puts a number that only grows into the first payload, such as the time in
//     nanoseconds, and ignores another first message whose number is not above
//     that of the newest session that is pending or still heard from: else old
//     messages displace what is pending;
//   - bounds how many messages a second it looks at, and looks at them away from
//     the packets: a forged first message costs 0.26 ms, a replayed one 1.3 ms, a
//     forged second one 0.74 ms (median of 60, AMD EPYC, Go 1.26).
//
// Split's two keys give each direction an AEAD key and a secret 12-byte
// initialisation vector (HKDF-Expand with SHA-256, labelled with the cipher). A
// packet's nonce is a 32-bit space followed by a 64-bit counter, both big-endian,
// XORed with that vector (RFC 8446 section 5.3, RFC 9001 section 5.3): whoever
// records the first packets of many sessions cannot test guessed keys against
// all of them at once. Spaces let paths and kinds of packets count for
// themselves. A space and a counter must never meet twice in one direction of a
// session: with AES-GCM that gives away the difference of two packets, and the
// means to forge more.
//
// Packets are sealed with AES-128-GCM where both processors have instructions
// for it, else with ChaCha20-Poly1305. 1,400 bytes take 607 ns with AES-128-GCM,
// 697 ns with AES-256-GCM and 929 ns with ChaCha20-Poly1305 (median of 40
// interleaved rounds of 5,000, AMD EPYC, Go 1.26): 256 bits would cost 15 % for
// an attack that nobody can mount on 128.
//
// Rekeying is a new handshake. A session says how many packets it may seal and
// how many forgeries it may refuse (Cipher.SealLimit, Cipher.OpenLimit). A million
// packets a second of 1,400 bytes use up AES-128-GCM's in six minutes.
//
// A receiver asks a Window whether a counter is Fresh, opens the packet, and then
// Marks the counter; only what is both authentic and newly marked is used. Where
// the header carries 32 bits of the counter, Extend finds the other 32, from the
// highest counter that was marked; the whole counter is in the nonce, so a wrong
// guess does not open. The window has a bit for each counter in a ring of words,
// and moving it clears the bits that come in (RFC 6479, but without a spare block,
// since the first and the last word are cleared in part: the window is as wide as
// asked, to the bit).
//
// # Limits
//
// Go moves and copies memory as it likes. Erased are: a PrivateKey (Erase), the
// ephemeral keys, and the bytes that session keys are made from. Not erased,
// until the collector reuses the memory: copies that crypto/ecdh makes, the
// chaining key and cipher states of the handshake, the expanded keys within a
// session's ciphers, and text that keys were parsed from. Drop every reference
// to an old session; there is nothing more to do for it.
//
// Curve25519 falls to a quantum computer of sufficient size, and what was
// recorded before with it. Lengths, times, spaces and counters are in the clear.
//
// # Sources
//
// The Noise Protocol Framework, revision 34 (sections 5, 6, 7.5 and 7.7); RFC 7748
// section 6.1; RFC 5116; RFC 5869; RFC 8439; RFC 6479; RFC 4304 appendix A; RFC
// 9000 appendix A.3; RFC 9001 sections 5.3 and 6.6 and appendix B; RFC 8446
// sections 5.3 and 5.5; Bellare and Tackmann, "The Multi-User Security of
// Authenticated Encryption", 2016.
package secure
