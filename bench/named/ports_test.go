package named

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

var somePorts = []Port{{Host: 8080, Container: 80}, {Host: 10000, Container: 20000, Count: 3}, {Host: 53, Container: 53, UDP: true}}

func TestPublish(t *testing.T) {
	if got, want := publish(somePorts), []string{"8080:80/tcp", "10000-10002:20000-20002/tcp", "53:53/udp"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	var single []Port
	each(somePorts, func(p Port) { single = append(single, p) })
	if want := []Port{{8080, 80, 0, false}, {10000, 20000, 0, false}, {10001, 20001, 0, false}, {10002, 20002, 0, false}, {53, 53, 0, true}}; !slices.Equal(single, want) {
		t.Errorf("%v, want %v", single, want)
	}
}

func TestNetavarkAddresses(t *testing.T) {
	for serial, want := range map[int]string{1: "198.18.1.1", 254: "198.18.1.254", 255: "198.18.2.1", 64516: "198.18.254.254", 64517: "198.18.1.1"} {
		if got := address(serial).String(); got != want {
			t.Errorf("container %d: %s, want %s", serial, got, want)
		}
	}
}

// TestPortsOfRivals checks that netavark and portmap get one mapping for each port, as they
// do from containers that publish one each.
func TestPortsOfRivals(t *testing.T) {
	c := &Container{Name: "web1", serial: 1, Ports: somePorts, result: []byte("{}")}
	for name, tt := range map[string]struct {
		options map[string]any
		want    string
	}{
		"netavark":  {new(netavark).options(c), `{"host_ip":"","container_port":20002,"host_port":10002,"range":1,"protocol":"tcp"}`},
		"cleat-cni": {cleatConf(c), `{"hostPort":10002,"containerPort":20002,"protocol":"tcp"}`},
		"portmap":   {portmapConf(c), `{"hostPort":10002,"containerPort":20002,"protocol":"tcp"}`},
	} {
		text, err := json.Marshal(tt.options)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), tt.want) || strings.Count(string(text), `"tcp"`) != 4 || strings.Count(string(text), `"udp"`) != 1 {
			t.Errorf("%s: %s, want five mappings, with %s", name, text, tt.want)
		}
	}
}
