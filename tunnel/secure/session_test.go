package secure

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
)

func TestSealAndOpen(t *testing.T) {
	eachCipher(t, func(t *testing.T, c Cipher) {
		a, b := sessions(t, c)
		for _, size := range []int{0, 1, 15, 16, 17, 1400, 9000, 65535} {
			header, plain := make([]byte, size%40), make([]byte, size)
			_, _ = bytesFrom(uint64(size)).Read(plain)
			nonce := Nonce{Space: uint32(size), Counter: 1<<64 - 1}
			sealed := a.Seal([]byte("before"), header, plain, nonce)
			if !bytes.HasPrefix(sealed, []byte("before")) || len(sealed) != 6+size+Overhead {
				t.Fatalf("sealing %d bytes gives %d", size, len(sealed))
			}
			if size > 16 && bytes.Contains(sealed, plain) {
				t.Errorf("%d bytes are not encrypted", size)
			}
			got, err := b.Open([]byte("before"), header, sealed[6:], nonce)
			if err != nil || !bytes.Equal(got, append([]byte("before"), plain...)) {
				t.Errorf("open %d bytes: %v", size, err)
			}
		}
	})
}

func TestInPlace(t *testing.T) {
	eachCipher(t, func(t *testing.T, c Cipher) {
		a, b := sessions(t, c)
		plain := bytes.Repeat([]byte("plain"), 280)
		packet := append([]byte("header"), plain...)
		packet = append(packet, make([]byte, Overhead)...)[:len(packet)] // room for the tag
		sealed := a.Seal(packet[:6], packet[:6], packet[6:], Nonce{})
		if &sealed[0] != &packet[0] || len(sealed) != 6+len(plain)+Overhead {
			t.Fatal("the packet was copied")
		}
		opened, err := b.Open(sealed[:6], sealed[:6], sealed[6:], Nonce{})
		if err != nil || &opened[0] != &packet[0] || !bytes.Equal(opened[6:], plain) || string(opened[:6]) != "header" {
			t.Errorf("opened in place: %v", err)
		}
	})
}

func TestForgedPackets(t *testing.T) {
	eachCipher(t, func(t *testing.T, c Cipher) {
		a, b := sessions(t, c)
		header, nonce := []byte("a header of 20 bytes"), Nonce{Space: 3, Counter: 5}
		sealed := a.Seal(nil, header, []byte("a packet longer than one block"), nonce)
		refuse := func(what string, s *Session, header, sealed []byte, nonce Nonce) {
			if got, err := s.Open(nil, header, sealed, nonce); err != ErrPacket || got != nil { // the bare sentinel: a forged packet must not cause an allocation
				t.Errorf("%s: %q, %v", what, got, err)
			}
		}
		for i := range sealed {
			for bit := range 8 {
				forged := bytes.Clone(sealed)
				forged[i] ^= 1 << bit
				refuse(fmt.Sprintf("bit %d of byte %d", bit, i), b, header, forged, nonce)
			}
			refuse(fmt.Sprintf("truncated to %d bytes", i), b, header, sealed[:i], nonce)
		}
		for i := range header {
			for bit := range 8 {
				forged := bytes.Clone(header)
				forged[i] ^= 1 << bit
				refuse(fmt.Sprintf("bit %d of byte %d of the header", bit, i), b, forged, sealed, nonce)
			}
		}
		refuse("no header", b, nil, sealed, nonce)
		refuse("an extra byte", b, header, append(bytes.Clone(sealed), 0), nonce)
		refuse("different space", b, header, sealed, Nonce{Space: 2, Counter: 5})
		refuse("different counter", b, header, sealed, Nonce{Space: 3, Counter: 5 + 1<<32})
		refuse("space and counter swapped", b, header, sealed, Nonce{Space: 5, Counter: 3})
		refuse("reflected", a, header, sealed, nonce)
		if _, err := b.Open(nil, header, sealed, nonce); err != nil {
			t.Errorf("the authentic packet: %v", err)
		}
	})
}

// TestReflection returns each side's own packets to it.
func TestReflection(t *testing.T) {
	eachCipher(t, func(t *testing.T, c Cipher) {
		a, b := sessions(t, c)
		for _, s := range []*Session{a, b} {
			sealed := s.Seal(nil, nil, []byte("plain"), Nonce{Counter: 1})
			if _, err := s.Open(nil, nil, sealed, Nonce{Counter: 1}); !errors.Is(err, ErrPacket) {
				t.Errorf("%v opens its own packet: %v", s, err)
			}
		}
	})
}

func TestSealAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes sync.Pool allocate")
	}
	eachCipher(t, func(t *testing.T, c Cipher) {
		a, b := sessions(t, c)
		packet := make([]byte, 20+1400, 20+1400+Overhead)
		header := packet[:20]
		var counter uint64
		if n := testing.AllocsPerRun(1000, func() {
			counter++
			nonce := Nonce{Space: 1, Counter: counter}
			sealed := a.Seal(header, header, packet[20:1420], nonce)
			if _, err := b.Open(header, header, sealed[20:], nonce); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%v allocations to seal and open a packet", n)
		}
		forged := make([]byte, 1416)
		if n := testing.AllocsPerRun(1000, func() {
			if _, err := b.Open(forged[:0], nil, forged, Nonce{}); err == nil {
				t.Fatal("a forged packet was opened")
			}
		}); n != 0 {
			t.Errorf("%v allocations to refuse a packet", n)
		}
	})
}

// TestConcurrentUse uses both ends of a session from several goroutines.
func TestConcurrentUse(t *testing.T) {
	eachCipher(t, func(t *testing.T, c Cipher) {
		a, b := sessions(t, c)
		var all sync.WaitGroup
		for space := range uint32(8) {
			all.Go(func() {
				from, to := a, b
				if space%2 == 1 {
					from, to = b, a
				}
				for counter := range uint64(200) {
					nonce := Nonce{Space: space, Counter: counter}
					plain := fmt.Appendf(nil, "packet %v", nonce)
					sealed := from.Seal(nil, nil, plain, nonce)
					if got, err := to.Open(nil, nil, sealed, nonce); err != nil || !bytes.Equal(got, plain) {
						t.Errorf("packet %v: %q, %v", nonce, got, err)
						return
					}
				}
			})
		}
		all.Wait()
	})
}

func TestSessionIsSilent(t *testing.T) {
	a, _ := sessions(t, AES128GCM)
	if got, want := a.String(), "session "+a.ID().String()+", AES-128-GCM"; got != want || len(a.ID().String()) != 16 {
		t.Errorf("session is %q, want %q", got, want)
	}
	secret := strings.Trim(fmt.Sprint(a.out.iv), "[]")
	for _, verb := range []string{"%v", "%+v", "%#v", "%d", "%x"} {
		if got := fmt.Sprintf(verb, struct{ s *Session }{a}) + fmt.Sprintf(verb, a); strings.Contains(got, secret) {
			t.Errorf("%s prints a secret: %s", verb, got)
		}
	}
}

// TestLimits checks the limits of RFC 9001, section 6.6 and appendix B.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		cipher     Cipher
		seal, open uint64
	}{
		{AES128GCM, 1 << 28 * Blocks(1<<11), 1 << 52}, // 2^28 packets of 2 KiB
		{AES128GCM, 1 << 23 * Blocks(1<<16), 1 << 52}, // 2^23 packets of 64 KiB
		{ChaCha20Poly1305, 1 << 62, 1 << 36},
	} {
		if got := c.cipher.SealLimit(); got != c.seal {
			t.Errorf("%v seals %d blocks, want %d", c.cipher, got, c.seal)
		}
		if got := c.cipher.OpenLimit(); got != c.open {
			t.Errorf("%v opens %d forged packets, want %d", c.cipher, got, c.open)
		}
	}
	for bytes, want := range map[int]uint64{0: 0, 1: 1, 16: 1, 17: 2, 1401: 88} {
		if got := Blocks(bytes); got != want {
			t.Errorf("%d bytes are %d blocks, want %d", bytes, got, want)
		}
	}
}

func TestCipherNames(t *testing.T) {
	for c, want := range map[Cipher]string{ChaCha20Poly1305: "ChaCha20-Poly1305", AES128GCM: "AES-128-GCM", 3: "cipher 3"} {
		if got := c.String(); got != want {
			t.Errorf("cipher %d is %q, want %q", byte(c), got, want)
		}
	}
}

// BenchmarkSeal seals a packet of 1,400 bytes in place.
func BenchmarkSeal(b *testing.B) {
	for _, c := range []Cipher{AES128GCM, ChaCha20Poly1305} {
		b.Run(c.String(), func(b *testing.B) {
			s, _ := sessions(b, c)
			packet := make([]byte, 1400, 1400+Overhead)
			b.SetBytes(int64(len(packet)))
			b.ReportAllocs()
			var nonce Nonce
			for b.Loop() {
				nonce.Counter++
				s.Seal(packet[:0], nil, packet, nonce)
			}
		})
	}
}
