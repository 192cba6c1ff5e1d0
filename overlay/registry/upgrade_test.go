package registry_test

import (
	"strings"
	"testing"

	"cleat/overlay/registry"
)

// TestUnknownFields changes records that have fields of a later version of this program: they stay.
func TestUnknownFields(t *testing.T) {
	s := newServer(t)
	r := s.begin()
	for _, c := range []struct {
		key, text string
		change    func() error
		want      []string
	}{
		{"/cleat/v1/hosts/b", `{"version":1,"name":"b","address":"192.0.2.2","port":7790,"dataplane":"vxlan","later":{"x":[1]},"last":"y"}`,
			func() error {
				return r.ChangeHost(t.Context(), "b", func(h *registry.Host) { h.Port, h.Dataplane = 7791, "" })
			}, []string{`"later":{"x":[1]}`, `"last":"y"`, `"port":7791`}},
		{"/cleat/v1/networks/web", `{"version":1,"name":"web","subnets":[],"later":true}`,
			func() error {
				return r.ChangeNetwork(t.Context(), "web", func(n *registry.Network) { n.Spec = []byte(`{"x":1}`) })
			}, []string{`"later":true`, `"spec":{"x":1}`}},
	} {
		s.put(c.key, c.text)
		must(t, c.change())
		got, err := s.etcd().Get(t.Context(), c.key)
		must(t, err)
		text := string(got.Kvs[0].Value)
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %s: %s", c.key, want, text)
			}
		}
		if strings.Contains(text, "vxlan") {
			t.Errorf("a field that was set to nothing is there: %s", text)
		}
	}
	if h, err := r.Host(t.Context(), "b"); err != nil || h.Port != 7791 {
		t.Errorf("%+v, %v", h, err)
	}
}
