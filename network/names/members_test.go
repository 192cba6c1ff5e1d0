package names

import (
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// A container on two networks finds the names of both at the gateway of either. Others don't.
func TestMembers(t *testing.T) {
	at := func(a string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(a)} }
	red := Network{Name: "red", NoForward: true, Subnets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Endpoints: []Endpoint{
		{ID: "both", Name: "both", Addrs: at("192.0.2.10")}, {ID: "one", Name: "one", Addrs: at("192.0.2.11")}}}
	blue := Network{Name: "blue", NoForward: true, Subnets: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, Endpoints: []Endpoint{
		{ID: "both", Name: "both", Addrs: at("198.51.100.10")}, {ID: "db", Name: "db", Addrs: at("198.51.100.20")}}}
	w := newWorld(t, red, blue)
	k := w.socket(t, "red")
	check := func(client, want string) {
		t.Helper()
		if got := show(unpack(t, k.answer(w.batch, ask(t, "db", dnsmessage.TypeA), sender(client), nil))); got != want {
			t.Errorf("%s: got %s, want %s", client, got, want)
		}
	}
	const found, none = "Success, 198.51.100.20", "NameError"
	check("192.0.2.10", found)
	check("192.0.2.11", none)
	out, client, q := make([]byte, 0, ednsUDPBytes), sender("192.0.2.10"), ask(t, "db", dnsmessage.TypeA)
	if n := testing.AllocsPerRun(100, func() { k.answer(w.batch, q, client, out) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	for _, step := range []struct {
		name   string
		change func() error
		want   string
	}{
		{"it leaves", func() error { return w.set("blue", Change{Delete: []string{"both"}}) }, none},
		{"it joins", func() error {
			return w.set("blue", Change{Set: []Endpoint{{ID: "both", Name: "both", Addrs: at("198.51.100.11")}}})
		}, found},
		{"its network is replaced", func() error { return w.replace(red) }, found},
		{"the other network goes", func() error { w.drop("blue"); return nil }, none},
		{"it is back", func() error { return w.replace(blue) }, found},
		{"its address changes", func() error {
			return w.set("red", Change{Set: []Endpoint{{ID: "both", Name: "both", Addrs: at("192.0.2.12")}}})
		}, none},
	} {
		if err := step.change(); err != nil {
			t.Fatal(err)
		}
		t.Log(step.name)
		check("192.0.2.10", step.want)
	}
}
