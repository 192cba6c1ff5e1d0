package packet

import (
	"errors"
	"testing"
)

func TestEthernet(t *testing.T) {
	want := Ethernet{Dst: MAC{2, 0, 0, 0, 0, 1}, Src: MAC{2, 0, 0, 0, 0, 2}, Type: EtherTypeIPv6}
	b := make([]byte, EthernetBytes)
	if n := want.Put(b); n != EthernetBytes {
		t.Errorf("Put: %d bytes", n)
	}
	var got Ethernet
	if err := got.Parse(b); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if err := got.Parse(b[:EthernetBytes-1]); !errors.Is(err, ErrShort) {
		t.Errorf("short header: %v", err)
	}
}

func TestMAC(t *testing.T) {
	for _, r := range []struct {
		text    string
		ok      bool
		unicast bool
	}{
		{"9a:55:9a:55:9a:55", true, true},
		{"00:00:00:00:00:00", true, false},
		{"ff:ff:ff:ff:ff:ff", true, false},
		{"33:33:00:00:00:01", true, false},
		{"02:00:5e:10:00", false, false},
		{"02:00:5e:10:00:01:02:03", false, false},
		{"", false, false},
	} {
		m, err := ParseMAC(r.text)
		if (err == nil) != r.ok {
			t.Errorf("%q: %v", r.text, err)
			continue
		}
		if r.ok && (m.String() != r.text || m.Unicast() != r.unicast) {
			t.Errorf("%q: %s, unicast %v", r.text, m, m.Unicast())
		}
	}
	// The example of RFC 4291 appendix A.
	if got, want := (MAC{0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde}).LinkLocal().String(), "fe80::3656:78ff:fe9a:bcde"; got != want {
		t.Errorf("link-local address %s, want %s", got, want)
	}
}
