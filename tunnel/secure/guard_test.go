package secure

import (
	"bytes"
	"errors"
	"testing"
)

// newGuards returns the guards of both ends.
func newGuards(t testing.TB) (first, second *Guard) {
	t.Helper()
	a, b := keysFrom(t, 1)
	first, err := NewGuard(a, b.Public())
	if err == nil {
		second, err = NewGuard(b, a.Public())
	}
	if err != nil {
		t.Fatal(err)
	}
	return first, second
}

func TestGuard(t *testing.T) {
	a, b := newGuards(t)
	header, message := []byte("header"), []byte("message")
	for _, pair := range [][2]*Guard{{a, b}, {b, a}} {
		sealed := pair[0].Seal([]byte("in front"), header, message)[len("in front"):]
		if len(sealed) != len(message)+GuardOverhead {
			t.Errorf("sealing %d bytes gives %d", len(message), len(sealed))
		}
		if got, err := pair[1].Open(header, bytes.Clone(sealed)); err != nil || !bytes.Equal(got, message) {
			t.Errorf("opened %q, %v", got, err)
		}
		if _, err := pair[0].Open(header, bytes.Clone(sealed)); !errors.Is(err, ErrHandshake) {
			t.Errorf("an end accepts its own message: %v", err)
		}
		if _, err := pair[1].Open([]byte("Header"), bytes.Clone(sealed)); !errors.Is(err, ErrHandshake) {
			t.Errorf("different header: %v", err)
		}
		for i := range sealed {
			altered := bytes.Clone(sealed)
			altered[i] ^= 1
			if _, err := pair[1].Open(header, altered); !errors.Is(err, ErrHandshake) {
				t.Errorf("byte %d altered: %v", i, err)
			}
			if _, err := pair[1].Open(header, bytes.Clone(sealed[:i])); !errors.Is(err, ErrHandshake) {
				t.Errorf("truncated to %d bytes: %v", i, err)
			}
		}
		if again := pair[0].Seal(nil, header, message); bytes.Equal(again, sealed) {
			t.Error("two sealed messages are equal")
		}
	}
}

// TestGuardOfStrangers has an attacker with both public keys and a key of its own forge
// messages to either end.
func TestGuardOfStrangers(t *testing.T) {
	a, b := keysFrom(t, 1)
	stranger, _ := keysFrom(t, 2)
	first, second := newGuards(t)
	for _, to := range []struct {
		guard *Guard
		key   PublicKey
	}{{first, a.Public()}, {second, b.Public()}} {
		forger, err := NewGuard(stranger, to.key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := to.guard.Open(nil, forger.Seal(nil, nil, []byte("message"))); !errors.Is(err, ErrHandshake) {
			t.Errorf("a stranger's message: %v", err)
		}
	}
}

func TestGuardRefusesKeys(t *testing.T) {
	a, _ := keysFrom(t, 1)
	if _, err := NewGuard(a, a.Public()); !errors.Is(err, ErrSameKey) {
		t.Errorf("both ends with one key: %v", err)
	}
	if _, err := NewGuard(PrivateKey{}, a.Public()); !errors.Is(err, ErrKey) {
		t.Errorf("no private key: %v", err)
	}
	for _, point := range lowOrderPoints() {
		if _, err := NewGuard(a, point); err == nil {
			t.Errorf("peer %x is accepted", point)
		}
	}
}

// FuzzGuard opens arbitrary messages, and altered ones of the peer.
func FuzzGuard(f *testing.F) {
	a, b := newGuards(f)
	f.Add([]byte("header"), []byte("message"), uint(0), byte(0))
	f.Add([]byte("header"), make([]byte, GuardOverhead-1), uint(3), byte(1))
	f.Add([]byte{}, make([]byte, GuardOverhead), uint(30), byte(1))
	f.Add([]byte("header"), []byte{}, uint(39), byte(128))
	f.Fuzz(func(t *testing.T, header, message []byte, at uint, by byte) {
		if _, err := b.Open(header, bytes.Clone(message)); !errors.Is(err, ErrHandshake) {
			t.Errorf("opening % x causes %v", message, err)
		}
		sealed := a.Seal(nil, header, message)
		sealed[at%uint(len(sealed))] ^= by
		got, err := b.Open(header, sealed)
		switch {
		case by == 0 && (err != nil || !bytes.Equal(got, message)):
			t.Errorf("% x is opened as % x with %v", message, got, err)
		case by != 0 && !errors.Is(err, ErrHandshake):
			t.Errorf("with byte %d altered, opening % x causes %v", at, message, err)
		}
	})
}
