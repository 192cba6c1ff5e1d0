package link_test

import (
	"errors"
	"slices"
	"testing"

	"cleat/link"
)

func TestMPTCP(t *testing.T) {
	requireKind(t, "mptcp")
	ns, other := newNS(t, "a"), newNS(t, "b")
	limits := link.MPTCPLimits{Subflows: 5, AcceptedAddAddrs: 3}
	must(t, link.SetMPTCPLimits(ns, limits))
	if got, err := link.ReadMPTCPLimits(ns); got != limits || err != nil {
		t.Errorf("limits are %+v, %v, want %+v", got, err, limits)
	}
	if got, err := link.ReadMPTCPLimits(other); got == limits || err != nil {
		t.Errorf("limits of another namespace are %+v, %v, want its own", got, err)
	}
	lo := find(t, ns, "lo")
	addr(t, lo, "192.0.2.3/32") // the kernel listens on the endpoint's port at once
	want := []link.MPTCPEndpoint{
		{Addr: mustAddr("192.0.2.1"), ID: 3, Device: "lo", Subflow: true, Backup: true, FullMesh: true},
		{Addr: mustAddr("2001:db8::1"), ID: 7, Signal: true},
		{Addr: mustAddr("192.0.2.3"), ID: 9, Port: 777, Signal: true},
	}
	for _, e := range want {
		must(t, link.AddMPTCPEndpoint(ns, e))
	}
	if err := link.AddMPTCPEndpoint(ns, want[0]); !errors.Is(err, link.ErrExists) {
		t.Errorf("add the same endpoint again: %v, want ErrExists", err)
	}
	if got, err := link.MPTCPEndpoints(ns); !slices.Equal(got, want) || err != nil {
		t.Errorf("endpoints are %+v, %v\nwant %+v", got, err, want)
	}
	must(t, link.DeleteMPTCPEndpoint(ns, 7))
	if got, err := link.MPTCPEndpoints(ns); len(got) != 2 || err != nil {
		t.Errorf("endpoints are %+v, %v after one was removed, want two", got, err)
	}
}

func TestMPTCPRefuses(t *testing.T) {
	requireKind(t, "mptcp")
	ns := newNS(t, "a")
	a := mustAddr("192.0.2.1")
	for param, try := range map[string]error{
		"address":           link.AddMPTCPEndpoint(ns, link.MPTCPEndpoint{Addr: mustAddr("239.1.1.1")}),
		"id":                link.AddMPTCPEndpoint(ns, link.MPTCPEndpoint{Addr: a, ID: 256}),
		"port":              link.AddMPTCPEndpoint(ns, link.MPTCPEndpoint{Addr: a, Port: 777}),
		"fullmesh":          link.AddMPTCPEndpoint(ns, link.MPTCPEndpoint{Addr: a, FullMesh: true}),
		"device":            link.AddMPTCPEndpoint(ns, link.MPTCPEndpoint{Addr: a, Device: "nobody"}),
		"subflows":          link.SetMPTCPLimits(ns, link.MPTCPLimits{Subflows: 1 << 20}),
		"add_addr_accepted": link.SetMPTCPLimits(ns, link.MPTCPLimits{AcceptedAddAddrs: -1}),
	} {
		var p *link.ParamError
		if !errors.As(try, &p) || p.Param != param {
			t.Errorf("%v, want a *ParamError for %s", try, param)
		}
	}
	if got, err := link.MPTCPEndpoints(ns); len(got) != 0 || err != nil {
		t.Errorf("endpoints are %+v, %v after all were refused, want none", got, err)
	}
}
