package named

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"cleat/link"
	"cleat/network/attach"
	"cleat/network/ipam"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// occupied is a range of addresses that a new network must not overlap.
type occupied struct {
	prefix netip.Prefix
	by     string // who has it, in words
}

// chooseSubnets rejects subnets that overlap what exists, and chooses free ones where the host
// is the gateway and no subnet was requested.
func (s *session) chooseSubnets(spec *NetworkSpec, others []*Network) error {
	if !spec.OnHost() {
		return s.checkOverlap(spec, others)
	}
	taken, err := s.occupied(others)
	if spec.Manager != "" { // its engine has chosen the subnets
		taken, err = ofNetworks(others), nil
	}
	if err != nil {
		return err
	}
	for _, sub := range spec.Subnets {
		if i := slices.IndexFunc(taken, func(o occupied) bool { return o.prefix.Overlaps(sub.Prefix) }); i >= 0 {
			return &attach.TakenError{Resource: "network", Name: sub.Prefix.String(), Owner: taken[i].by}
		}
	}
	if spec.Manager != "" {
		return nil
	}
	if len(spec.Subnets) == 0 {
		bits := subnetBits4
		if spec.Spans {
			bits = spanBits4
		}
		if err := spec.addFree(ipam.DefaultPools4(), bits, taken); err != nil {
			return err
		}
	}
	if spec.IPv6 && !slices.ContainsFunc(spec.Subnets, func(sub Subnet) bool { return sub.Prefix.Addr().Is6() }) {
		return spec.addFree(ipam.DefaultPools6(machineID()), subnetBits6, taken)
	}
	return nil
}

// The prefix lengths of subnets that are chosen.
const (
	subnetBits4 = 24
	subnetBits6 = 64 // RFC 4291 section 2.5.1
)

func (s *NetworkSpec) addFree(pools []netip.Prefix, bits int, taken []occupied) error {
	var avoid []netip.Prefix
	for _, o := range taken {
		avoid = append(avoid, o.prefix)
	}
	p, err := ipam.ChooseSubnet(pools, bits, avoid)
	if err != nil {
		return fmt.Errorf("choose a subnet: %w", err)
	}
	s.Subnets = append(s.Subnets, Subnet{Prefix: p, Gateway: p.Addr().Next()})
	return nil
}

// machineID is the seed of the host's own IPv6 prefix: it is the same after a restart.
func machineID() []byte {
	for _, path := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		if id, err := os.ReadFile(path); err == nil && len(id) > 0 {
			return id
		}
	}
	name, _ := os.Hostname()
	return []byte(name)
}

// occupied returns the addresses that are in use: by the host's routes, by other networks of
// ours, and by networks of other engines that have no device at the moment.
func (s *session) occupied(others []*Network) ([]occupied, error) {
	all, err := s.routes()
	if err != nil {
		return nil, err
	}
	return slices.Concat(all, ofNetworks(others), otherEngines()), nil
}

func ofNetworks(networks []*Network) (all []occupied) {
	for _, n := range networks {
		for _, sub := range n.Subnets {
			all = append(all, occupied{sub.Prefix, "network " + n.Name})
		}
	}
	return all
}

// routes returns the destinations of the host's routes except default routes.
func (s *session) routes() ([]occupied, error) {
	return s.routesThat(func(netlink.Route, string) bool { return true })
}

// connectedRoutes returns the networks that the host's devices other than one are on.
func (s *session) connectedRoutes(except string) ([]occupied, error) {
	return s.routesThat(func(r netlink.Route, device string) bool { return r.Gw == nil && r.Via == nil && device != except })
}

// routesThat returns the destinations of routes of the host that match, except default routes.
func (s *session) routesThat(match func(r netlink.Route, device string) bool) ([]occupied, error) {
	h, err := link.Handle(s.host)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	var all []occupied
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := link.Dump(func() ([]netlink.Route, error) {
			return h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes of the host: %w", err)
		}
		for _, r := range routes {
			if r.Dst == nil {
				continue
			}
			device := deviceOf(h, r)
			by := "the host's " + device
			if device == "" {
				by = "a route of the host"
			}
			a, ok := netip.AddrFromSlice(r.Dst.IP)
			bits, _ := r.Dst.Mask.Size()
			if p := netip.PrefixFrom(a.Unmap(), bits); ok && bits > 0 && !a.IsLinkLocalUnicast() && !a.IsMulticast() && match(r, device) {
				all = append(all, occupied{p.Masked(), by})
			}
		}
	}
	return all, nil
}

// deviceOf returns the name of the device of a route; "" if it has none.
func deviceOf(h *netlink.Handle, r netlink.Route) string {
	l, err := h.LinkByIndex(r.LinkIndex)
	if err != nil {
		return ""
	}
	return l.Attrs().Name
}

// otherEngines returns the subnets in the files of Podman's networks and of CNI, whose bridges
// exist only while a container is on them. Docker's bridges always exist.
func otherEngines() []occupied {
	var all []occupied
	for _, pattern := range []string{"/etc/containers/networks/*.json", "/etc/cni/net.d/*.conf", "/etc/cni/net.d/*.conflist"} {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			for _, p := range subnetsIn(path) {
				all = append(all, occupied{p, "the network in " + path})
			}
		}
	}
	return all
}

// subnetsIn returns all values named "subnet" in a JSON file; none if it can't be read.
func subnetsIn(path string) []netip.Prefix {
	text, err := os.ReadFile(path)
	var content any
	if err = errors.Join(err, json.Unmarshal(text, &content)); err != nil {
		return nil
	}
	var found []netip.Prefix
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for key, e := range v {
				text, isText := e.(string)
				if p, err := netip.ParsePrefix(text); key == "subnet" && isText && err == nil {
					found = append(found, p.Masked())
				}
				walk(e)
			}
		}
	}
	walk(content)
	return found
}
