package docker

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cleat/internal/rate"
	"cleat/internal/spell"
	"cleat/network/attach"
	"cleat/network/named"
)

// optionOurs begins the options of the drivers.
const optionOurs = "cleat."

// wantedNetwork is what options say about a network.
type wantedNetwork struct {
	named.NetworkSpec
	Direct bool // see dockerNetwork
}

// networkOptions set a field of a network. All but direct are called as in a file of `cleat net apply`.
var networkOptions = map[string]func(s *wantedNetwork, value string) error{
	"direct":         truth(func(s *wantedNetwork) *bool { return &s.Direct }),
	"network":        text(func(s *wantedNetwork) *string { return &s.Name }),
	"driver":         text(func(s *wantedNetwork) *string { return &s.Driver }),
	"parent":         text(func(s *wantedNetwork) *string { return &s.Parent }),
	"mode":           text(func(s *wantedNetwork) *string { return &s.Mode }),
	"host_access":    text(func(s *wantedNetwork) *string { return &s.HostAccess }),
	"vlan":           number(func(s *wantedNetwork) *int { return &s.VLAN }),
	"mtu":            number(func(s *wantedNetwork) *int { return &s.MTU }),
	"datapath":       text(func(s *wantedNetwork) *string { return &s.Datapath }),
	"large_segments": truth(func(s *wantedNetwork) *bool { return &s.LargeSegments }),
	"default_deny":   truth(func(s *wantedNetwork) *bool { return &s.DefaultDeny }),
	"nat": func(s *wantedNetwork, value string) error {
		nat, err := strconv.ParseBool(value)
		s.NoNAT = !nat
		return err
	},
	"dns": func(s *wantedNetwork, value string) error {
		for word := range strings.SplitSeq(value, ",") {
			a, err := netip.ParseAddr(word)
			if err != nil {
				return err
			}
			s.DNS = append(s.DNS, a)
		}
		return nil
	},
}

func text(field func(*wantedNetwork) *string) func(*wantedNetwork, string) error {
	return func(s *wantedNetwork, value string) error { *field(s) = value; return nil }
}

func number(field func(*wantedNetwork) *int) func(*wantedNetwork, string) (err error) {
	return func(s *wantedNetwork, value string) (err error) {
		*field(s), err = strconv.Atoi(value)
		return err
	}
}

func truth(field func(*wantedNetwork) *bool) func(*wantedNetwork, string) error {
	return func(s *wantedNetwork, value string) (err error) {
		*field(s), err = strconv.ParseBool(value)
		return err
	}
}

// networkSpec returns the network that options describe, without its addresses, and which options were
// given.
func networkSpec(options map[string]any) (spec wantedNetwork, given []string, err error) {
	generic, _ := options[optionGeneric].(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(generic)) {
		value := fmt.Sprint(generic[key])
		name, ours := optionName(key)
		if key == optionMTU {
			name, ours = "mtu", true
		}
		if !ours && strings.HasPrefix(key, optionPrefix) {
			continue // of Docker's own drivers, or of a file of Compose that names them
		}
		set := networkOptions[name]
		if !ours || set == nil {
			return spec, nil, unknownOption(key, slices.Sorted(maps.Keys(networkOptions)))
		}
		if err := set(&spec, value); err != nil {
			return spec, nil, &attach.SpecError{Param: key, Value: value, Reason: "is not valid"}
		}
		given = append(given, name)
	}
	spec.Internal, _ = options[optionInternal].(bool)
	return spec, given, nil
}

// optionName returns the name of one of our options, with underscores.
func optionName(key string) (name string, ours bool) {
	name, ours = strings.CutPrefix(key, optionOurs)
	return strings.ReplaceAll(name, "-", "_"), ours
}

func unknownOption(key string, known []string) error {
	var all []string
	for _, name := range known {
		all = append(all, optionOurs+name)
	}
	return &attach.SpecError{Param: "option", Value: key, Reason: "no such option", Allowed: spell.Order(key, all)}
}

// endpointSpec is what options say about an endpoint (docker network connect --driver-opt).
type endpointSpec struct {
	Rate    int64             `json:"rate,omitempty"`
	In      int64             `json:"rate_in,omitempty"`
	Out     int64             `json:"rate_out,omitempty"`
	Aliases []string          `json:"aliases,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Publish string            `json:"publish,omitempty"` // named.Everywhere: ports are published on all hosts
}

// endpointOptions are the names of the options of an endpoint.
var endpointOptions = []string{"aliases", "labels", "publish", "rate", "rate_in", "rate_out"}

// parseEndpoint parses the options of an endpoint.
func parseEndpoint(options map[string]any) (e endpointSpec, err error) {
	for _, key := range slices.Sorted(maps.Keys(options)) {
		name, ours := optionName(key)
		if !ours {
			continue // Docker passes its own, and those for other drivers
		}
		value := fmt.Sprint(options[key])
		switch name {
		case "rate":
			e.Rate, err = bits(value)
		case "rate_in":
			e.In, err = bits(value)
		case "rate_out":
			e.Out, err = bits(value)
		case "publish":
			if e.Publish = value; value != named.Everywhere {
				return e, &attach.SpecError{Param: key, Value: value, Reason: "unknown value", Allowed: []string{named.Everywhere}}
			}
		case "aliases":
			e.Aliases = strings.Split(value, ",")
		case "labels":
			e.Labels = map[string]string{}
			for pair := range strings.SplitSeq(value, ",") {
				label, v, _ := strings.Cut(pair, "=")
				e.Labels[label] = v
			}
		default:
			return e, unknownOption(key, endpointOptions)
		}
		if err != nil {
			return e, &attach.SpecError{Param: key, Value: value, Reason: err.Error()}
		}
	}
	return e, nil
}

// bits parses a rate. Docker's client makes values lower case.
func bits(text string) (int64, error) {
	r, err := rate.Parse(strings.NewReplacer("m", "M", "g", "G", "t", "T").Replace(text))
	return int64(r), err
}
