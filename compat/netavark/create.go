package netavark

import (
	"crypto/rand"
	"encoding/json"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"cleat/network/ipam"
)

// The texts of errors are netavark's: Podman and its users know some of them.

// Drivers of networks, and what gives addresses.
const (
	driverBridge  = "bridge"
	driverMacvlan = "macvlan"
	driverIPvlan  = "ipvlan"

	ipamHostLocal = "host-local"
	ipamDHCP      = "dhcp"
	ipamNone      = "none"
	ipamCleat     = "cleat"
)

// create completes a new network.
func (c *call) create() error {
	var r createRequest
	if err := json.Unmarshal(c.Stdin, &r); err != nil {
		return loadError("network create", err)
	}
	n := &r.Network
	n.hasDNSServer = n.DNSServers != nil
	if err := c.complete(&r); err != nil {
		return err
	}
	n.Created = time.Now().UTC().Format(time.RFC3339Nano)
	return c.print(n)
}

// complete checks a new network, and chooses what was left open.
func (c *call) complete(r *createRequest) error {
	n := &r.Network
	for _, check := range []error{n.checkName(r.Used.Names), n.checkID(), n.checkInterface(), n.checkIPAM()} {
		if check != nil {
			return check
		}
	}
	checkUsed := false
	var err error
	switch n.Driver {
	case driverBridge:
		checkUsed, err = n.completeBridge(r)
	case driverMacvlan, driverIPvlan:
		err = n.completeVLAN()
	default:
		err = c.completeByPlugin(n)
	}
	if err != nil {
		return err
	}
	if n.ipamDriver() == ipamNone {
		n.DNS = false
	}
	if n.hasDNSServer && !n.DNS {
		return failure("cannot set NetworkDNSServers if DNS is not enabled for the network")
	}
	if err := n.completeSubnets(!n.Internal || n.DNS, checkUsed, r.Used.Subnets); err != nil {
		return err
	}
	return n.checkRoutes()
}

var (
	nameForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`) })
	idForm   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-fA-F]{64}$`) })
)

func (n *network) checkName(used map[string]string) error {
	_, exists := used[n.Name]
	switch {
	case n.Name == "":
		return failure("Network name must be supplied")
	case !nameForm().MatchString(n.Name):
		return failure("Invalid characters in network name %q: must match [a-zA-Z0-9][a-zA-Z0-9_.-]*", n.Name)
	case exists:
		return failure("network already exists %s", n.Name)
	}
	return nil
}

func (n *network) checkID() error {
	switch {
	case n.ID == "":
		return failure("Network id must be supplied")
	case !idForm().MatchString(n.ID):
		return failure("Network id must be a hexadecimal string %q", n.ID)
	}
	return nil
}

func (n *network) checkInterface() error {
	const longest = 15 // IFNAMSIZ-1
	if n.Interface == nil {
		return nil
	}
	name := *n.Interface
	bad := strings.IndexFunc(name, func(r rune) bool { return r == '/' || r == ':' || unicode.IsSpace(r) })
	switch {
	case utf8.RuneCountInString(name) > longest:
		return failure("Interface name is too long: interface names must be %d characters or less: %s", longest, name)
	case name == "" || name == "..":
		return failure("Interface name cannot be . or ..")
	case bad >= 0:
		r, _ := utf8.DecodeRuneInString(name[bad:])
		return failure("Interface name cannot contain\"%c\"", r)
	}
	return nil
}

func (n *network) checkIPAM() error {
	driver, given := n.IPAM["driver"]
	switch {
	case !given || driver == ipamHostLocal || driver == ipamDHCP:
		return nil
	case driver != ipamNone:
		return failure("Unsupported ipam driver: %s", driver)
	case len(n.Subnets) > 0:
		return failure("None ipam driver is set but subnets are given")
	}
	return nil
}

// completeBridge completes a network of driver bridge. It reports whether its subnets must be free.
func (n *network) completeBridge(r *createRequest) (checkUsed bool, err error) {
	if v, ok := n.Options["com.docker.network.driver.mtu"]; ok {
		delete(n.Options, "com.docker.network.driver.mtu")
		n.Options["mtu"] = v
	}
	if v, ok := n.Options["com.docker.network.bridge.name"]; ok {
		delete(n.Options, "com.docker.network.bridge.name")
		n.Interface = &v
	}
	o, err := parseOptions(n.Options, bridgeOptions, "unsupported bridge network option: ")
	if err != nil {
		return false, err
	}
	exclusive := o.vlan == 0 && (o.mode == "" || o.mode == "managed")
	switch {
	case n.Interface == nil:
		name, err := freeDevice(r)
		if err != nil {
			return false, err
		}
		n.Interface = &name
	case exclusive && slices.Contains(r.Used.Interfaces, *n.Interface):
		return false, failure("bridge name %s already in use", *n.Interface)
	case !nameForm().MatchString(*n.Interface):
		return false, failure("bridge name %s is invalid", *n.Interface)
	}
	checkUsed = exclusive && r.Options.CheckUsed
	if driver := n.ipamDriver(); driver != "" && driver != ipamHostLocal {
		return checkUsed, nil
	}
	if err := n.chooseSubnets(r, checkUsed); err != nil {
		return false, err
	}
	n.setIPAM(ipamHostLocal)
	return checkUsed, nil
}

func (n *network) setIPAM(driver string) {
	if n.IPAM == nil {
		n.IPAM = map[string]string{}
	}
	n.IPAM["driver"] = driver
}

// chooseSubnets adds free subnets, of the families that are missing.
func (n *network) chooseSubnets(r *createRequest, checkUsed bool) error {
	has := func(v4 bool) bool {
		return slices.ContainsFunc(n.Subnets, func(s subnet) bool { return s.Subnet.Addr().Is4() == v4 })
	}
	if len(n.Subnets) == 0 || n.IPv6 && !has(true) {
		p, err := freeSubnet4(r, checkUsed)
		if err != nil {
			return err
		}
		n.Subnets = append(n.Subnets, subnet{Subnet: prefix{p}})
	}
	if n.IPv6 && !has(false) {
		p, err := freeSubnet6(r)
		if err != nil {
			return err
		}
		n.Subnets = append(n.Subnets, subnet{Subnet: prefix{p}})
	}
	return nil
}

// completeVLAN completes a network on a parent.
func (n *network) completeVLAN() error {
	if n.Interface != nil {
		if names := devices(); names != nil && !slices.Contains(names, *n.Interface) {
			return failure("parent interface %s does not exist", *n.Interface)
		}
	}
	n.DNS = false // the parent's network has its own
	switch driver := n.ipamDriver(); {
	case driver == "" && len(n.Subnets) > 0:
		n.setIPAM(ipamHostLocal)
	case n.Driver == driverIPvlan && (driver == "" || driver == ipamDHCP):
		return failure("ipam driver dhcp is not supported with ipvlan")
	case driver == "":
		n.setIPAM(ipamDHCP)
	case driver == ipamHostLocal && len(n.Subnets) == 0:
		return failure("%s driver needs at least one subnet specified when the host-local ipam driver is set", n.Driver)
	case driver == ipamDHCP && len(n.Subnets) > 0:
		return failure("ipam driver dhcp set but subnets are set")
	}
	o, err := parseOptions(n.Options, vlanOptions, "unsupported vlan network option: ")
	if err != nil {
		return err
	}
	if err := checkMode(n.Driver, o.mode); err != nil {
		return err
	}
	if o.bclim != nil && n.Driver == driverIPvlan {
		return failure("unsupported ipvlan network option bclim")
	}
	return nil
}

// devices returns the names of the host's devices; nil if they can't be listed.
func devices() (names []string) {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names
}

// freeDevice returns a name for a bridge.
func freeDevice(r *createRequest) (string, error) {
	if r.Options.InterfaceName == nil {
		return "", failure("default interface name is not set")
	}
	used := append(devices(), r.Used.Interfaces...)
	for i := 1; i < 1_000_000; i++ {
		name := *r.Options.InterfaceName + strconv.Itoa(i)
		if _, isNetwork := r.Used.Names[name]; !isNetwork && !slices.Contains(used, name) {
			return name, nil
		}
	}
	return "", failure("Could not find a free device name after 1,000,000 attempts")
}

// freeSubnet4 returns the first subnet of the pools that is free.
func freeSubnet4(r *createRequest, checkUsed bool) (netip.Prefix, error) {
	err := failure("could not find free subnet from subnet pools")
	for _, pool := range r.Options.Pools {
		base := pool.Base.Masked()
		if !base.Addr().Is4() {
			continue
		}
		if pool.Size < base.Bits() || pool.Size > 32 {
			err = failure("Failed to create network from pool: invalid IP prefix length")
			continue
		}
		for p := netip.PrefixFrom(base.Addr(), pool.Size); base.Contains(p.Addr()); {
			if !checkUsed || !isUsed(p, r.Used.Subnets) {
				return p, nil
			}
			_, last := ipam.Bounds(p)
			next := last.Next()
			if !next.IsValid() {
				break
			}
			p = netip.PrefixFrom(next, pool.Size)
		}
	}
	return netip.Prefix{}, err
}

func isUsed(p netip.Prefix, used []prefix) bool {
	return slices.ContainsFunc(used, func(u prefix) bool { return u.Overlaps(p) })
}

// freeSubnet6 returns a random subnet of the addresses for private use (RFC 4193).
func freeSubnet6(r *createRequest) (netip.Prefix, error) {
	for range 10_000 {
		var b [16]byte
		b[0] = 0xfd
		rand.Read(b[1:8])
		if p := netip.PrefixFrom(netip.AddrFrom16(b), 64); !isUsed(p, r.Used.Subnets) {
			return p, nil
		}
	}
	return netip.Prefix{}, failure("failed to get random ipv6 subnet")
}
