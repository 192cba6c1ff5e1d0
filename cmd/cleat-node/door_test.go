package main_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cleat/overlay/control"
	"cleat/overlay/trust"
)

// knownHosts returns the names of the hosts of the cluster.
func (h *host) knownHosts() string {
	h.c.t.Helper()
	s, err := h.status()
	must(h.c.t, err)
	var names []string
	for _, one := range s.Hosts {
		names = append(names, one.Name)
	}
	return strings.Join(names, " ")
}

// TestBadInputAtTheDoor joins with what can't be accepted. Each time the user learns why and what to do, and
// nothing changes, on the host or in the cluster.
func TestBadInputAtTheDoor(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	a, b, other := c.hosts[0], c.hosts[1], c.hosts[2]
	a.node("up", "--name", "a", "--address", a.addr.String())
	a.cleat("net", "create", "web", "--span", "--subnet", "10.64.0.0/24")
	shared := netip.MustParsePrefix("198.51.100.7/32")
	must(t, b.Address("eth0", shared))
	b.node("up", "--name", "b", "--address", shared.Addr().String(), "--token", a.token())
	must(t, other.Address("eth0", shared))

	text := a.token()
	token, err := trust.ParseToken(text)
	must(t, err)
	change := func(f func(*trust.Token)) string {
		changed := token
		f(&changed)
		return changed.String()
	}
	short := a.node("token", "--valid", "1s")
	short = short[strings.LastIndex(short, " ")+1:]
	expires := time.Now().Add(2 * time.Second)
	c.eventually("a token expires", func() error {
		if time.Now().Before(expires) {
			return os.ErrDeadlineExceeded
		}
		return nil
	})
	for _, tt := range []struct {
		name   string
		token  string
		args   []string
		before func()
		want   []string
	}{
		{"mistyped", text[:len(text)-3] + "AAA", nil, nil, []string{"this is no token: a part of it is missing or mistyped", "`cleat-node token` on a host of the cluster prints one"}},
		{"cut off", text[:30], nil, nil, []string{"this is no token", "`cleat-node token`"}},
		{"of another program", "K10abc::server:def", nil, nil, []string{"this is no token: it does not begin with cleat1-", "`cleat-node token`"}},
		{"with another secret", change(func(t *trust.Token) { t.Secret[0]++ }), nil, nil, []string{"the token is not valid, or has expired", "make a new token"}},
		{"that nobody has made", change(func(t *trust.Token) { t.ID = "00000000" }), nil, nil, []string{"the token is not valid, or has expired", "make a new token"}},
		{"expired", short, nil, nil, []string{"the token is not valid, or has expired", "make a new token"}},
		{"of another cluster", change(func(t *trust.Token) { t.Authority[0]++ }), nil, nil, []string{"the host at 192.0.2.1:7790 is not of the token's cluster", "make a new token"}},
		{"of a cluster that is down", change(func(t *trust.Token) { t.Addresses = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:1")} }), nil, nil,
			[]string{"no host of the cluster answers: connect to host at 192.0.2.1:1", "is cleat-node up there"}},
		{"and a name that is taken", text, []string{"--name", "a"}, nil, []string{"host a exists already", "choose another name (--name), or remove that host"}},
		{"and a name that can't be", text, []string{"--name", "no_name"}, nil, []string{`host name "no_name"`}},
		{"and an address that is taken", text, []string{"--address", "198.51.100.7"}, nil, []string{"host b has its address 198.51.100.7 already", "cleat-node remove b"}},
		{"and an address of nobody", text, []string{"--address", "192.0.2.77"}, nil, []string{"this host does not have the address 192.0.2.77", "`ip address`"}},
		{"and a subnet that is in use", text, nil, func() { must(t, other.Address("eth0", netip.MustParsePrefix("10.64.0.5/16"))) }, []string{"10.64.0.0/24"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.before != nil {
				tt.before()
			}
			args := append([]string{"cleat-node", "up", "--token", tt.token}, tt.args...)
			if len(tt.args) == 0 || tt.args[0] != "--name" {
				args = append(args, "--name", "c")
			}
			_, err := other.run(t.Context(), args...)
			if err == nil {
				t.Fatal("it joins")
			}
			_, said, _ := strings.Cut(err.Error(), "\n") // after the command line
			for _, want := range tt.want {
				if !strings.Contains(said, want) {
					t.Errorf("%q is missing in: %s", want, said)
				}
			}
			if strings.Contains(said, tt.token[10:]) {
				t.Errorf("the error shows the token: %s", said)
			}
			if left, _ := os.ReadDir(control.Dir(other.state)); len(left) > 0 {
				t.Errorf("%s has %v", filepath.Base(control.Dir(other.state)), left)
			}
			if got := a.knownHosts(); got != "a b" {
				t.Errorf("the cluster has %s", got)
			}
		})
	}
}

// TestExpiredCertificate starts a host whose certificate has expired while it was off. It says so, and what to do. The
// cluster does not notice.
func TestExpiredCertificate(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.up()
	all := c.web()
	a, b := c.hosts[0], c.hosts[1]
	b.node("down")
	text, err := os.ReadFile(a.file("authority.pem"))
	must(t, err)
	authority, err := trust.ParseAuthority(text)
	must(t, err)
	id, err := b.identity().SignedBy(authority, time.Now().Add(-400*24*time.Hour))
	must(t, err)
	expired, err := id.PEM()
	must(t, err)
	must(t, os.WriteFile(b.file("identity.pem"), expired, 0o600))
	b.node("up")
	for _, want := range []string{"the certificate of b is valid from", "this host's clock says", "timedatectl", "cleat-node up --token TOKEN"} {
		c.eventually("the host says why", func() error { return b.hasProblem(want) })
	}
	if err := a.sees(b, true); err == nil {
		t.Error("the host with the expired certificate takes part")
	}
	if err := reachAll(all); err != nil {
		t.Error(err)
	}
	// It does what the message says.
	b.node("leave", "--force")
	a.node("remove", "b")
	b.node("up", "--name", "b", "--token", a.token())
	c.eventually("it is a host again", func() error { return c.agree(c.hosts...) })
}
