package wire

import (
	"bytes"
	"testing"

	"cleat/packet"
)

func TestFormOf(t *testing.T) {
	session := make([]byte, HeaderBytes)
	(&Shim{}).Put(session)
	compat := make([]byte, 16)
	(&packet.GRE{Protocol: packet.EtherTypeIPv4, HasSeq: true, HasKey: true}).Put(compat)
	for _, tt := range []struct {
		name string
		b    []byte
		want Form
	}{
		{"a session's", session, Session},
		{"a greeting", AppendHello(nil), Hello},
		{"version 1", []byte{0x10, 0, 0x88, 0xb5, 0, 0, 0, 0, 0x40}, Version1},
		{"compat", compat, Other},
		{"key only", []byte{0x20, 0, 0x88, 0xb5}, Other},
		{"short", session[:3], Other},
		{"nothing", nil, Other},
	} {
		if got := FormOf(tt.b); got != tt.want {
			t.Errorf("%s: form %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestHello(t *testing.T) {
	b := append(AppendHello(nil), 7, 8)
	version, body, err := ParseHello(b)
	if err != nil || version != Version || !bytes.Equal(body, []byte{7, 8}) {
		t.Errorf("version %d, % x, %v", version, body, err)
	}
	b[4]++
	if version, _, err = ParseHello(b); err != nil || version != Version+1 {
		t.Errorf("the next version is parsed as %d, %v", version, err)
	}
	if _, _, err = ParseHello(b[:4]); err == nil {
		t.Error("a hello without a version is accepted")
	}
}
