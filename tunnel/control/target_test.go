package control

import (
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"cleat/tunnel/spec"

	"github.com/google/go-cmp/cmp"
)

const office = `name: office
address: [10.9.0.1/30]
routes: [10.20.0.0/16]
paths:
  - {name: dsl, device: eth0, remote: 198.51.100.2}
  - {name: lte, device: wwan0, remote: 198.51.100.2, rate: 50M}
`

func loadTunnel(t *testing.T, text string) *spec.Tunnel {
	t.Helper()
	f, err := spec.Load(strings.NewReader(text), "office.yaml", func(string) (io.ReadCloser, fs.FileMode, error) { return nil, 0, os.ErrNotExist })
	if err != nil || f.Tunnel == nil {
		t.Fatal(err, f.Findings)
	}
	return f.Tunnel
}

func TestDescribe(t *testing.T) {
	for _, tt := range []struct {
		name    string
		replace []string
		changed []string
		refused []string
	}{
		{"nothing", nil, nil, nil},
		{"addresses and routes", []string{"10.9.0.1/30", "10.9.0.2/30", "[10.20.0.0/16]", "[10.21.0.0/16]"},
			[]string{"address 10.9.0.1/30 removed", "address 10.9.0.2/30 added", "route 10.20.0.0/16 removed", "route 10.21.0.0/16 added"}, nil},
		{"sources", []string{"routes: [10.20.0.0/16]", "routes: [10.20.0.0/16]\nsources: [10.30.0.0/16]"}, []string{"source 10.30.0.0/16 added"}, nil},
		{"the tunnel's own", []string{"paths:", "scheduler: duplicate\nduplicate: 2\nreorder: {udp: false, hold: 50ms}\nmtu: 1400\nqueue: 5ms\npaths:"},
			[]string{"scheduler is duplicate on 2 paths", "reorder is {tcp: true, udp: false, hold: 50ms}", "mtu is 1400", "queue is 5ms"}, nil},
		{"paths", []string{"name: lte", "name: 5g"}, []string{"path lte removed", "path 5g added"}, nil},
		{"a path", []string{"device: eth0, remote: 198.51.100.2}", "device: eth1, local: 192.0.2.1, port: 4800, remote: 198.51.100.3, weight: 2, mtu: 1400, metered: true, state: down}", "rate: 50M", ""},
			[]string{"path dsl changed: device eth1, local 192.0.2.1, port 4800, remote 198.51.100.3:4754, weight 2, mtu 1400, metered true, state down", "path lte changed: rate unlimited"}, nil},
		{"what can't be", []string{"name: office", "name: home\ndevice: office"}, nil, []string{"name can't change from office to home without a restart: another name is another tunnel"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before, after := loadTunnel(t, office), loadTunnel(t, strings.NewReplacer(tt.replace...).Replace(office))
			got := Describe(spec.Compare(before, after))
			if d := cmp.Diff(Reloaded{append([]string{}, tt.changed...), append([]string{}, tt.refused...)}, got); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
	back := Describe(spec.Compare(loadTunnel(t, office+"mtu: 1400\nqueue: 5ms\nscheduler: duplicate\n"), loadTunnel(t, office)))
	if want := []string{"scheduler is adaptive", "mtu is as the smallest path allows", "queue is chosen by the tunnel"}; !slices.Equal(back.Changed, want) {
		t.Errorf("got %q, want %q", back.Changed, want)
	}
}
