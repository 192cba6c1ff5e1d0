// Package secure protects the packets of a tunnel between two hosts that know each
// other's public keys: a handshake, a seal for each packet, and a replay window. It does
// no I/O, reads no clock and starts no goroutines.
//
// # Theory of operation
//
// Keys are Curve25519 keys in WireGuard's text form, so `wg genkey` makes them too. Each
// side has its own private key and the peer's public key, and never accepts another key.
//
// The handshake is Noise_IK_25519_ChaChaPoly_BLAKE2s with the prologue "cleat tunnel 2".
// It consists of two messages:
//
//	initiator → responder   e, es, s, ss, payload    97 to 297 bytes
//	responder → initiator   e, ee, se, payload       49 to 249 bytes
//
// ChaChaPoly and BLAKE2s, as in WireGuard, take constant time on every processor, even
// without instructions for AES, and handshakes are too rare for their speed to matter.
//
// The keys determine which side initiates (Initiates), so two hosts that start at the
// same time don't make two sessions. The first byte of each payload belongs to this
// package: the ciphers that the initiator supports well, and the one that the responder
// picked. The rest is the caller's, encrypted and authenticated. Whoever later steals the
// responder's private key can decrypt the payload of the first message, but nothing else
// (Noise section 7.7).
//
// A message that is forged, altered, truncated, for another key, for the other role or of
// another version causes ErrHandshake and changes nothing: Finish may be called with the
// next message. A recorded first message can be replayed. Respond then makes a session
// whose keys only the true initiator could compute, because they depend on an ephemeral
// key that the attacker does not have. So the caller
//
//   - keeps the previous session in use, and a session made by Respond pending, until a packet has been opened with the new session;
//   - answers a first message that comes again, over another path or because the answer was lost, with the same answer and makes no second session;
//   - puts a number that only grows into the first payload, such as the time in nanoseconds, and ignores a first message whose number is not above that of the newest session that is pending or still heard from: otherwise old messages would displace a pending session;
//   - limits the rate of messages that it processes, and processes them outside of the packet path: a forged first message costs 0.26 ms, a replayed one 1.3 ms, a forged second one 0.74 ms (median of 60, AMD EPYC, Go 1.26).
//
// Noise's Split makes two keys, from which each direction derives an AEAD key and a
// secret 12-byte initialization vector (HKDF-Expand with SHA-256, labelled with the
// cipher). A packet's nonce is a 32-bit space followed by a 64-bit counter, both
// big-endian, XORed with that vector (RFC 8446 section 5.3, RFC 9001 section 5.3). So an
// attacker who records the first packets of many sessions can't test guessed keys against
// all of them at once. Each path and kind of packet counts in its own space. A space and
// a counter must never occur twice in one direction of a session: with AES-GCM that
// reveals the difference of two packets, and allows forging more.
//
// Packets are sealed with AES-128-GCM if both processors have instructions for it,
// otherwise with ChaCha20-Poly1305. 1,400 bytes take 607 ns with AES-128-GCM, 697 ns with
// AES-256-GCM and 929 ns with ChaCha20-Poly1305 (median of 40 interleaved rounds of
// 5,000, AMD EPYC, Go 1.26): 256 bits would cost 15 % to prevent an attack that nobody
// can mount on 128.
//
// Rekeying is a new handshake. Cipher.SealLimit and Cipher.OpenLimit bound how much a
// session may seal and how many forgeries it may refuse. A million packets a second of
// 1,400 bytes use up AES-128-GCM's limit in six minutes.
//
// A receiver asks a Window whether a counter is new (IsNew), opens the packet, and then
// marks the counter (Mark). It uses only a packet that is authentic and newly marked.
// Where the header carries 32 bits of the counter, Extend finds the other 32 from the
// highest counter that was marked. The whole counter is part of the nonce, so a packet
// with a wrong guess does not open. The window has a bit for each counter in a ring of
// words, and moving it clears the bits that enter (RFC 6479, but without a spare block:
// the first and the last word are cleared in part, so the window is exactly as wide as
// the ring).
//
// # Limits
//
// Go moves and copies memory as it likes. Erased are the ephemeral keys and the bytes that
// session keys are made from. Not erased, until the collector reuses the memory: private
// keys, copies that crypto/ecdh makes, the chaining key and cipher states of the handshake,
// the expanded keys within a session's ciphers, and text that keys were parsed from. Drop
// every reference to an old session; there is nothing more to do for it.
//
// A quantum computer of sufficient size breaks Curve25519, and with it everything
// recorded before. Lengths, times, spaces and counters are not encrypted.
//
// # Sources
//
// The Noise Protocol Framework, revision 34 (sections 5, 6, 7.5 and 7.7); RFC 7748
// section 6.1; RFC 5116; RFC 5869; RFC 8439; RFC 6479; RFC 4304 appendix A; RFC 9000
// appendix A.3; RFC 9001 sections 5.3 and 6.6 and appendix B; RFC 8446 sections 5.3 and
// 5.5; Bellare and Tackmann, "The Multi-User Security of Authenticated Encryption", 2016.
package secure
