package slirp4netns

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"testing/iotest"
)

// FuzzParse parses unlikely command lines, and plans what they ask for.
func FuzzParse(f *testing.F) {
	for _, line := range []string{"-c\x00-r\x003\x001234\x00tap0", "--cidr\x00192.0.2.0/24\x00--netns-type=path\x00/proc/1/ns/net\x00tap0", "--cidr=0.0.0.0/0\x001", "--cidr=10.0.0.0/31\x001",
		"--mtu\x0065521\x001\x00t", "--outbound-addr=eth0\x00--outbound-addr6\x00::1\x001", "-a\x00/run/x\x00--userns-path\x00\x001", "--macaddress\x00x\x001"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		o, err := Parse(strings.Split(line, "\x00"))
		if err != nil || o.Help || o.Version {
			return
		}
		_, _ = o.Plan(func(string, bool) (netip.Addr, error) { return netip.MustParseAddr("192.0.2.9"), nil })
	})
}

// FuzzReadRequest reads requests that arrive whole, byte by byte, or incomplete.
func FuzzReadRequest(f *testing.F) {
	f.Add([]byte(`{"execute": "list_hostfwd"}`))
	f.Add([]byte(`{"execute": "`))
	f.Add(bytes.Repeat([]byte("["), largestRequest))
	f.Fuzz(func(t *testing.T, text []byte) {
		whole, errWhole := readRequest(bytes.NewReader(text))
		bytewise, errBytewise := readRequest(iotest.OneByteReader(bytes.NewReader(text)))
		if errWhole == nil && errBytewise == nil && !bytes.HasPrefix(whole, bytewise) {
			t.Errorf("%q at once, %q byte by byte", whole, bytewise)
		}
		if len(whole) >= largestRequest || len(bytewise) >= largestRequest {
			t.Errorf("%d and %d bytes", len(whole), len(bytewise))
		}
		if errors.Is(errWhole, io.EOF) {
			t.Error(errWhole)
		}
	})
}
