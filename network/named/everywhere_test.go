package named_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"cleat/network/named"
)

// span creates this host's part of a network web, of which hosts b and c have containers api and front.
func (tb *testbed) span() {
	tb.t.Helper()
	spec := named.NetworkSpec{Name: "web", Driver: named.Routed, Subnets: []named.Subnet{{Prefix: netip.MustParsePrefix("10.64.0.0/18")}}}
	part := named.Span{Blocks: []netip.Prefix{netip.MustParsePrefix("10.64.1.0/26")},
		Remotes: []named.Remote{{Device: "cleat-vx", Only: true, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.64.2.0/26"), netip.MustParsePrefix("10.64.3.0/26")}}}}
	must(tb.t, tb.onHost(func() error { _, err := named.CreateSpan(tb.t.Context(), tb.cfg, spec, part); return err }))
	tb.setRemote("b", "api", "10.64.2.1")
	tb.setRemote("c", "front", "10.64.3.1")
}

// setRemote makes a container the only one of another host, with ports.
func (tb *testbed) setRemote(host, name, addr string, ports ...named.Port) {
	tb.t.Helper()
	e := named.RemoteEndpoint{ID: "docker." + name, Container: "docker:" + name, Names: []string{name}, Addresses: []netip.Addr{netip.MustParseAddr(addr)}, Published: ports}
	must(tb.t, tb.onHost(func() error {
		return named.SetRemotes(tb.t.Context(), tb.cfg, "web", map[string][]named.RemoteEndpoint{host: {e}})
	}))
}

func (tb *testbed) elsewhere() (texts []string) {
	tb.t.Helper()
	must(tb.t, tb.onHost(func() error {
		all, err := named.SyncElsewhere(tb.t.Context(), tb.cfg, nil)
		for _, p := range all {
			if p.Taken != nil {
				texts = append(texts, p.String())
			}
		}
		return err
	}))
	return texts
}

func everywhere(t *testing.T, text string) named.Port {
	t.Helper()
	p, err := named.ParsePort(named.Everywhere + ":" + text)
	must(t, err)
	if p.String() != named.Everywhere+":"+text {
		t.Errorf("%q is written as %q", text, p)
	}
	return p
}

// Who has a port that containers of other hosts publish everywhere.
func TestEverywhereTaken(t *testing.T) {
	tb := newTestbed(t, "a")
	tb.span()
	local := named.Port{Protocol: "tcp", HostPort: 9090, Port: 80}
	e, err := tb.connect("web", "a", named.Connection{Ports: []named.Port{local}})
	must(t, err)
	if !e.Addresses[0].IsValid() {
		t.Error("no address")
	}
	var l net.Listener
	must(t, tb.onHost(func() (err error) { l, err = net.Listen("tcp", ":7070"); return err }))
	defer l.Close()
	tb.setRemote("b", "api", "10.64.2.1", everywhere(t, "8080:80"), everywhere(t, "9090:80"), everywhere(t, "7070:80"), everywhere(t, "8000-8002:80-82/udp"))
	tb.setRemote("c", "front", "10.64.3.1", everywhere(t, "8080:443"), everywhere(t, "8001:81/udp"))
	taken := tb.elsewhere()
	for i, want := range []string{
		"port everywhere:9090:80 of docker:api of host b on network web is not published on this host: tcp port 9090 is in use by a on network web",
		"port everywhere:7070:80 of docker:api of host b on network web is not published on this host: tcp port 7070 is in use by ",
		"port everywhere:8080:443 of docker:front of host c on network web is not published on this host: tcp port 8080 is in use by docker:api of host b on network web",
		"port everywhere:8001:81/udp of docker:front of host c on network web is not published on this host: udp port 8001 is in use by docker:api of host b on network web",
	} {
		if i >= len(taken) || !strings.HasPrefix(taken[i], want) {
			t.Errorf("%q\nwant %q", taken, want)
			break
		}
	}
	for _, text := range []string{"8080:80", "127.0.0.1:8080:80", "8080-8081:80-81", "everywhere:8080:80", "8002:80/udp"} {
		p, err := named.ParsePort(text)
		must(t, err)
		err = tb.onHost(func() error { _, err := named.Publish(t.Context(), tb.cfg, "web", "a", []named.Port{p}); return err })
		var in *named.PortTakenError
		if !errors.As(err, &in) || in.Owner != "docker:api of host b on network web" {
			t.Errorf("publish %s: %v", text, err)
		}
	}
	tb.check()
	tb.setRemote("b", "api", "10.64.2.1")
	l.Close()
	if taken := tb.elsewhere(); len(taken) > 0 {
		t.Errorf("after b has withdrawn its ports: %q", taken)
	}
	tb.check()
}

// A file may name containers of other hosts, which these connect. One that this host has as well is this host's.
func TestApplyElsewhere(t *testing.T) {
	tb := newTestbed(t, "a", "front")
	tb.span()
	w, err := named.ParseFile("web.yaml", []byte("networks:\n  web: {span: true, containers: {\"docker:api\": {}, front: {}, a: {}}}\n"))
	must(t, err)
	var texts []string
	must(t, tb.onHost(func() error {
		changes, err := named.Plan(context.Background(), tb.cfg, w, false)
		for _, c := range changes {
			texts = append(texts, c.Text)
		}
		return err
	}))
	if got := strings.Join(texts, ", "); got != "connect a to web, connect front to web" {
		t.Errorf("planned: %s", got)
	}
}

// Engines write all addresses of a host as 0.0.0.0 or [::]. A certain one is of one host.
func TestEverywhereAt(t *testing.T) {
	for text, want := range map[string]string{"8080:80": "", "0.0.0.0:8080:80": "", "[::]:8080:80": "", "192.0.2.1:8080:80": "other hosts don't have the address 192.0.2.1"} {
		p, err := named.ParsePort(named.Everywhere + ":" + text)
		switch {
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", text, err, want)
		case want == "" && (err != nil || p.String() != "everywhere:8080:80"):
			t.Errorf("%s: %s, %v", text, p, err)
		}
	}
}
