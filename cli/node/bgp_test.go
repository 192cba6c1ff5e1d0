package node

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"cleat/cli/hint"
	"cleat/overlay"

	"github.com/spf13/pflag"
)

func parseBGP(args ...string) (*overlay.BGP, error) {
	var f bgpFlags
	flags := pflag.NewFlagSet("up", pflag.ContinueOnError)
	f.add(flags)
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	return f.parse()
}

func TestBGPFlags(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	router := netip.MustParseAddr("192.0.2.254")
	for _, c := range []struct {
		name string
		args []string
		want *overlay.BGP
	}{
		{"none given", nil, nil},
		{"ended", []string{"--bgp-peer", "none"}, nil},
		{"reflector", []string{"--bgp-as", "65001", "--bgp-peer", "192.0.2.254"}, &overlay.BGP{AS: 65001, Peers: []overlay.BGPPeer{{Address: router}}}},
		{"all options", []string{"--bgp-as", "65001", "--bgp-port", "179", "--bgp-peer", "192.0.2.254,as=65000,password=" + secret + ",hold=3s,multihop=2,max=20,accept=default"},
			&overlay.BGP{AS: 65001, Port: 179, Peers: []overlay.BGPPeer{{Address: router, AS: 65000, Password: secret, Hold: 3 * time.Second, Multihop: 2, MaxPrefixes: 20, Default: true}}}},
		{"two peers", []string{"--bgp-as", "65001", "--bgp-peer", "192.0.2.254,bfd", "--bgp-peer", "2001:db8::fe"},
			&overlay.BGP{AS: 65001, Peers: []overlay.BGPPeer{{Address: router, BFD: true}, {Address: netip.MustParseAddr("2001:db8::fe")}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseBGP(c.args...)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

func TestBGPFlagsRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"no AS", []string{"--bgp-peer", "192.0.2.254"}, "needs --bgp-as"},
		{"no peer", []string{"--bgp-as", "65001"}, "need --bgp-peer"},
		{"none and another", []string{"--bgp-as", "65001", "--bgp-peer", "none", "--bgp-peer", "192.0.2.254"}, "want an IP address"},
		{"no address", []string{"--bgp-as", "65001", "--bgp-peer", "router"}, "want an IP address"},
		{"unknown option", []string{"--bgp-as", "65001", "--bgp-peer", "192.0.2.254,ttl=2"}, `unknown option "ttl"`},
		{"no number", []string{"--bgp-as", "65001", "--bgp-peer", "192.0.2.254,as=x"}, "as=x: want a number"},
		{"AS 0", []string{"--bgp-as", "65001", "--bgp-peer", "192.0.2.254,as=0"}, "want a number from 1"},
		{"no file", []string{"--bgp-as", "65001", "--bgp-peer", "192.0.2.254,password=/none"}, "/none"},
		{"short hold time", []string{"--bgp-as", "65001", "--bgp-peer", "192.0.2.254,hold=1s"}, "at least 3s"},
		{"half a second", []string{"--bgp-as", "65001", "--bgp-peer", "192.0.2.254,hold=3.5s"}, "whole seconds"},
		{"accept all", []string{"--bgp-as", "65001", "--bgp-peer", "192.0.2.254,accept=all"}, "only accept=default"},
		{"twice", []string{"--bgp-as", "65001", "--bgp-peer", "192.0.2.254", "--bgp-peer", "192.0.2.254"}, "configured twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseBGP(c.args...)
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, new(hint.UsageError)) || len(hint.All(err)) == 0 {
				t.Errorf("error is %v, hints %q; want %q", err, hint.All(err), c.want)
			}
		})
	}
}
