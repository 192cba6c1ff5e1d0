package secure

import (
	"bytes"
	"errors"
	"testing"
)

// guards are those of both ends.
func guards(t testing.TB) (first, second *Guard) {
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
	a, b := guards(t)
	header, message := []byte("header"), []byte("message")
	for _, pair := range [][2]*Guard{{a, b}, {b, a}} {
		sealed := pair[0].Seal([]byte("in front"), header, message)[len("in front"):]
		if len(sealed) != len(message)+GuardOverhead {
			t.Errorf("%d bytes became %d", len(message), len(sealed))
		}
		if got, err := pair[1].Open(header, bytes.Clone(sealed)); err != nil || !bytes.Equal(got, message) {
			t.Errorf("opened %q, %v", got, err)
		}
		if _, err := pair[0].Open(header, bytes.Clone(sealed)); !errors.Is(err, ErrHandshake) {
			t.Errorf("its own message is taken for the peer's: %v", err)
		}
		if _, err := pair[1].Open([]byte("Header"), bytes.Clone(sealed)); !errors.Is(err, ErrHandshake) {
			t.Errorf("another header: %v", err)
		}
		for i := range sealed {
			altered := bytes.Clone(sealed)
			altered[i] ^= 1
			if _, err := pair[1].Open(header, altered); !errors.Is(err, ErrHandshake) {
				t.Errorf("byte %d altered: %v", i, err)
			}
			if _, err := pair[1].Open(header, bytes.Clone(sealed[:i])); !errors.Is(err, ErrHandshake) {
				t.Errorf("cut to %d bytes: %v", i, err)
			}
		}
		if again := pair[0].Seal(nil, header, message); bytes.Equal(again, sealed) {
			t.Error("a message looks the same each time")
		}
	}
}

// TestGuardOfStrangers has somebody who knows both public keys, and has a key of his own,
// forge messages to either end.
func TestGuardOfStrangers(t *testing.T) {
	a, b := keysFrom(t, 1)
	stranger, _ := keysFrom(t, 2)
	first, second := guards(t)
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
			t.Errorf("peer %x is taken", point)
		}
	}
}

// FuzzGuard gives a guard strange messages.
func FuzzGuard(f *testing.F) {
	a, b := guards(f)
	header := []byte("header")
	authentic := a.Seal(nil, header, []byte("message"))
	f.Add(header, authentic)
	f.Add(header, authentic[:GuardOverhead-1])
	f.Add([]byte{}, authentic)
	f.Add(header, []byte{})
	f.Fuzz(func(t *testing.T, h, sealed []byte) {
		own := bytes.Equal(h, header) && bytes.Equal(sealed, authentic)
		if _, err := b.Open(h, bytes.Clone(sealed)); own != (err == nil) || err != nil && !errors.Is(err, ErrHandshake) {
			t.Errorf("% x is opened with %v", sealed, err)
		}
	})
}
