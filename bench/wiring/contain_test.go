package wiring_test

import (
	"errors"
	"strings"
	"testing"

	"cleat/bench/container"
	"cleat/bench/wiring"
	"cleat/lab"
)

// TestHostInAContainer checks that the host itself can't be put into a container.
func TestHostInAContainer(t *testing.T) {
	_, err := wiring.Build(t.Context(), wiring.Config{
		Spec: wiring.Spec{Network: "host-loopback", Topology: "local"}, Pairs: 1, Scratch: scratch(t), ContainerRuntime: new(container.Runtime)})
	var never *wiring.NotApplicable
	if !errors.As(err, &never) || !strings.Contains(never.Why, "in no container") {
		t.Errorf("got %v", err)
	}
}

// TestEndsInContainers checks that both ends of each pair are put into containers, unless
// they are native.
func TestEndsInContainers(t *testing.T) {
	lab.Need(t)
	for _, tt := range []struct {
		name    string
		runtime *container.Runtime
	}{{"native", nil}, {"in containers", new(container.Runtime)}} {
		t.Run(tt.name, func(t *testing.T) {
			w, err := wiring.Build(t.Context(), wiring.Config{
				Spec: wiring.Spec{Network: "veth", Topology: "local"}, Pairs: 2, Scratch: scratch(t), ContainerRuntime: tt.runtime})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			for i, p := range w.Pairs {
				for end, r := range map[string]lab.Runner{"client": p.Client, "server": p.Server} {
					if _, isNode := r.(*lab.Node); isNode != (tt.runtime == nil) {
						t.Errorf("%s %d runs on a node: %t", end, i, isNode)
					}
				}
				if p.ClientNode == nil {
					t.Errorf("client %d has no ClientNode", i)
				}
			}
		})
	}
}
