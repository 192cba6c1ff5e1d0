package dhcp

import (
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Identifiers don't change between versions, because servers know clients by them.
func TestIdentifierOf(t *testing.T) {

	got := IdentifierOf("web", "eth0")
	if len(got) != 1+4+2+16 || !strings.HasPrefix(got.String(), "ff") || got.String()[10:14] != "0004" {
		t.Errorf("%s does not have the form ff, IAID, 0004, UUID", got)
	}
	if got[7+6]>>4 != 8 || got[7+8]>>6 != 2 {
		t.Errorf("%s has no UUID of version 8", got)
	}
	if other := IdentifierOf("web", "eth1"); string(other[:5]) == string(got[:5]) || string(other[5:]) != string(got[5:]) {
		t.Errorf("another link of the container: %s, %s", got, other)
	}
	if other := IdentifierOf("db", "eth0"); string(other[:5]) != string(got[:5]) || string(other[5:]) == string(got[5:]) {
		t.Errorf("the same link of another container: %s, %s", got, other)
	}
}

func TestClientValidate(t *testing.T) {
	for name, c := range map[string]struct {
		client Client
		ok     bool
	}{
		"nothing":        {Client{}, true},
		"all":            {Client{ID: Identifier{0, 1}, HostName: "web-1.example.org"}, true},
		"host name":      {Client{HostName: "web\nserver"}, false},
		"empty label":    {Client{HostName: "web..org"}, false},
		"long label":     {Client{HostName: strings.Repeat("a", 64)}, false},
		"long name":      {Client{HostName: strings.Repeat("a.", 127) + "a"}, false},
		"leading hyphen": {Client{HostName: "-rf"}, false},
	} {
		if err := c.client.Validate(); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrClient) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A lease survives encoding as JSON.
func TestLeaseJSON(t *testing.T) {
	l := Lease{
		Client:  Client{ID: Identifier{1, 0xab}, HostName: "web"},
		Address: netip.MustParsePrefix("192.0.2.10/24"), Server: netip.MustParseAddr("192.0.2.1"),
		Routes: []Route{{To: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("198.51.100.1"), OnLink: true}, {To: netip.MustParsePrefix("198.51.100.0/24")}},
		DNS:    []netip.Addr{netip.MustParseAddr("192.0.2.2")}, Domain: "example.org", MTU: 1400,
		Obtained: at(0), Renew: at(100).Wall, Rebind: at(175).Wall, Expires: at(200).Wall, LastAttempt: at(101), Notes: []string{"one"},
	}
	b, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	var got Lease
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, l) {
		t.Errorf("encoded %+v, decoded %+v:\n%s", l, got, b)
	}
	if !strings.Contains(string(b), `"id":"01ab"`) || !strings.Contains(string(b), `"expires":"2026-01-01T00:03:20Z"`) {
		t.Errorf("encoded as %s", b)
	}
	for _, bad := range []string{`{"client":{"id":"xy"}}`, `{"address":"192.0.2.10"}`} {
		if json.Unmarshal([]byte(bad), &got) == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

// at returns the time some seconds after the beginning, by clocks that agree.
func at(seconds int) Stamp {
	d := time.Duration(seconds) * time.Second
	return Stamp{Wall: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(d), Boot: "this", Up: time.Hour + d}
}
