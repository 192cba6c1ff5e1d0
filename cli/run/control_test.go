package run

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"cleat/internal/ledger"
	"cleat/policy"
	"cleat/sandbox"
	"cleat/sandbox/control"
	"cleat/usernet"
)

// fakeCarrier is a network that only stores forwards.
type fakeCarrier struct {
	forwards []sandbox.Forward
	name     string // of all flows; "" is example.com
}

func (c *fakeCarrier) Flows() ([]sandbox.FlowInfo, error) {
	at := time.Unix(1000, 0)
	young := sandbox.FlowInfo{Started: at.Add(time.Second), State: "established", InBytes: 2}
	young.Protocol, young.Destination = sandbox.TCP, netip.MustParseAddrPort("192.0.2.1:443")
	old := sandbox.FlowInfo{Started: at}
	old.Protocol, old.Destination, old.Inbound = sandbox.UDP, netip.MustParseAddrPort("192.0.2.1:53"), true
	return []sandbox.FlowInfo{young, old}, nil
}

func (c *fakeCarrier) Stats() sandbox.Stats { return sandbox.Stats{Stats: usernet.Stats{TCPFlows: 1}} }

func (c *fakeCarrier) Names(netip.Addr) []string {
	return []string{cmp.Or(c.name, "example.com"), "example.org"}
}

func (c *fakeCarrier) Forward(f sandbox.Forward) (netip.AddrPort, error) {
	switch f.Listen.Port() {
	case 0:
		f.Listen = netip.AddrPortFrom(netip.IPv6Unspecified(), 40000)
	case 80:
		return netip.AddrPort{}, syscall.EACCES
	case 81:
		return netip.AddrPort{}, syscall.EADDRINUSE
	}
	c.forwards = append(c.forwards, f)
	return f.Listen, nil
}

func (c *fakeCarrier) Unforward(f sandbox.Forward) error {
	for i, have := range c.forwards {
		if have == f {
			c.forwards = append(c.forwards[:i], c.forwards[i+1:]...)
			return nil
		}
	}
	return sandbox.ErrNotForwarded
}

func (c *fakeCarrier) Forwards() []sandbox.Forward { return c.forwards }

func newTestTarget(t *testing.T) (*target, *fakeCarrier) {
	t.Helper()
	rules, err := policy.New(policy.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := &fakeCarrier{}
	return &target{net: c, rules: rules, stop: func() {}}, c
}

func TestTargetFlows(t *testing.T) {
	target, _ := newTestTarget(t)
	flows, err := target.Flows()
	if err != nil || len(flows) != 2 {
		t.Fatalf("flows %v, %v", flows, err)
	}
	if f := flows[0]; f.Protocol != "udp" || !f.Inbound || f.Name != "" {
		t.Errorf("the oldest flow is %+v", f)
	}
	if f := flows[1]; f.Protocol != "tcp" || f.Name != "example.com" || f.State != "established" || f.InBytes != 2 {
		t.Errorf("the youngest flow is %+v", f)
	}
}

func TestTargetForwards(t *testing.T) {
	target, carrier := newTestTarget(t)
	automatic := sandbox.Forward{Protocol: sandbox.TCP, Listen: netip.MustParseAddrPort("[::]:22"), To: netip.AddrPortFrom(netip.Addr{}, 22)}
	carrier.forwards = append(carrier.forwards, automatic)
	anyPort := control.Forward{Protocol: "udp", To: control.Endpoint{Port: 53}}
	added, err := target.AddForward(anyPort)
	if err != nil || added.Listen.Port != 40000 || added.Protocol != "udp" {
		t.Fatalf("add: %+v, %v", added, err)
	}
	all, err := target.Forwards()
	if err != nil || len(all) != 2 || !all[0].Auto || all[1].Auto {
		t.Errorf("forwards %+v, %v; want an automatic one and a given one", all, err)
	}
	// A forward is removed by the text that added it, with the port that was chosen.
	typed := control.Forward{Protocol: "udp", Listen: control.Endpoint{Port: 40000}, To: control.Endpoint{Port: 53}}
	other := typed
	other.To.Port = 54
	var e *control.Error
	if err := target.RemoveForward(other); !errors.As(err, &e) || e.Kind != control.KindRequest || e.Hint == "" {
		t.Errorf("remove another: %v", err)
	}
	if err := target.RemoveForward(typed); err != nil {
		t.Errorf("remove: %v", err)
	}
	if len(carrier.forwards) != 1 || len(target.explicit) != 0 {
		t.Errorf("after removing: %v, given %v", carrier.forwards, target.explicit)
	}
}

func TestTargetForwardFails(t *testing.T) {
	target, _ := newTestTarget(t)
	low := "8080:80"
	if os.Getuid() == 0 {
		low = "with `cleat run -p`" // root could have opened it at the start
	}
	for port, want := range map[uint16]string{80: low, 81: "ss -ltunp"} {
		_, err := target.AddForward(control.Forward{Protocol: "tcp", Listen: control.Endpoint{Port: port}, To: control.Endpoint{Port: 1}})
		var e *control.Error
		if !errors.As(err, &e) || e.Kind != control.KindFailed || !strings.Contains(e.Hint, want) {
			t.Errorf("port %d: %#v, want a hint with %q", port, err, want)
		}
	}
}

func TestTargetPolicy(t *testing.T) {
	target, _ := newTestTarget(t)
	const text = "default deny\nallow example.com:443/tcp\n"
	if err := target.SetPolicy(text); err != nil {
		t.Fatal(err)
	}
	got, err := target.Policy()
	if err != nil || !strings.Contains(got, "default deny") || !strings.Contains(got, "allow example.com:443/tcp") {
		t.Errorf("policy %q, %v", got, err)
	}
	var e *control.Error
	if err := target.SetPolicy("alow example.com"); !errors.As(err, &e) || e.Kind != control.KindRequest {
		t.Errorf("a mistake: %#v", err)
	}
	if again, _ := target.Policy(); again != got {
		t.Errorf("after a mistake the policy is %q", again)
	}
}

// Every counter of the data path is part of the control protocol's.
func TestWireStatsIsComplete(t *testing.T) {
	var s sandbox.Stats
	want := map[string]int{}
	names := map[string]string{"Connected": "Substituted", "Listening": "Lent"} // others must keep theirs
	for _, v := range []reflect.Value{reflect.ValueOf(&s.Stats).Elem(), reflect.ValueOf(&s.Supervisor).Elem()} {
		for i := range v.NumField() {
			n := len(want) + 1
			switch f := v.Field(i); f.Kind() {
			case reflect.Map:
				f.Set(reflect.ValueOf(map[string]uint64{"why": uint64(n)}))
			case reflect.Int:
				f.SetInt(int64(n))
			default:
				f.SetUint(uint64(n))
			}
			name := v.Type().Field(i).Name
			want[cmp.Or(names[name], name)] = n
		}
	}
	s.Ledger = ledger.Usage{Used: ledger.Cost{Bytes: 1}, Peak: ledger.Cost{Bytes: 2}, Limit: ledger.Cost{Bytes: 3}, Refused: 4}
	if got := wireStats(s).Ledger; got != s.Ledger {
		t.Errorf("the ledger's state is %+v, want %+v", got, s.Ledger)
	}
	got := map[string]int{}
	w := reflect.ValueOf(wireStats(s))
	for _, field := range reflect.VisibleFields(w.Type()) {
		switch f := w.FieldByIndex(field.Index); f.Kind() {
		case reflect.Struct: // the ledger, and what is embedded
		case reflect.Map:
			got[field.Name] = int(f.MapIndex(reflect.ValueOf("why")).Uint())
		case reflect.Int:
			got[field.Name] = int(f.Int())
		default:
			got[field.Name] = int(f.Uint())
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("counters %v get through of %v", got, want)
	}
}

// The guest chooses names with escapes; the list of all flows must fit into an answer.
func TestFlowsHaveShortNames(t *testing.T) {
	target, carrier := newTestTarget(t)
	carrier.name = strings.Repeat(`\255`, 253)
	flows, err := target.Flows()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		if len(f.Name) > 260 {
			t.Errorf("a name of %d bytes", len(f.Name))
		}
	}
}
