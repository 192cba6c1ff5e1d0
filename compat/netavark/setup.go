package netavark

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"cleat/link"
	"cleat/netns"
	"cleat/netns/find"
	"cleat/network/attach"
	"cleat/network/named"
)

// join is one network that a container is being connected to.
type join struct {
	network *network
	conn    named.Connection
	spec    named.NetworkSpec
	plugin  string // path of the plug-in that does it; "": cleat
	option  connection
}

// setup connects a container to networks, to all of them or to none.
func (c *call) setup(ctx context.Context) error {
	if err := c.checkNamespace(); err != nil {
		return err
	}
	var o options
	if err := json.Unmarshal(c.Stdin, &o); err != nil {
		return loadError("network options", err)
	}
	joins, err := c.joins(&o)
	if err != nil {
		return err
	}
	if err := c.loopbackUp(); err != nil {
		return err
	}
	result := map[string]any{}
	waitForNames := false
	for i, j := range joins {
		st, err := c.join(ctx, &o, j)
		if err != nil {
			return errors.Join(err, c.leaveAll(context.WithoutCancel(ctx), &o, joins[:i]))
		}
		result[j.network.Name] = st
		waitForNames = waitForNames || j.plugin == "" && j.network.DNS && !j.spec.NoNames
	}
	if waitForNames && c.Serve != nil {
		if err := c.Serve(ctx); err != nil {
			return errors.Join(err, c.leaveAll(context.WithoutCancel(ctx), &o, joins))
		}
	}
	return c.print(result)
}

// joins checks the input of setup, before anything is changed.
func (c *call) joins(o *options) (all []*join, err error) {
	ports, err := o.ports()
	if err != nil {
		return nil, err
	}
	for _, option := range o.Networks {
		info, ok := o.Info[option.Name]
		if !ok {
			return nil, failure("network info for network %s not found", option.Name)
		}
		j := &join{network: &info, option: option}
		all = append(all, j)
		if j.plugin, err = c.pluginFor(info.Driver); err != nil {
			return nil, err
		}
		if j.plugin != "" {
			continue
		}
		if j.conn, err = o.connection(j.network, option); err != nil {
			return nil, err
		}
		if j.spec, err = info.spec(info.names()[0]); err != nil {
			return nil, err
		}
		if leadsOut := j.spec.Driver == named.Bridge && !j.spec.Internal; leadsOut && !c.publishes(o) {
			j.conn.Ports, ports = ports, nil
		}
	}
	return all, nil
}

// publishes reports whether the container has published ports on a network that it joined earlier.
func (c *call) publishes(o *options) bool {
	if len(o.Ports) == 0 {
		return false
	}
	all, _ := named.EndpointsOf(c.Networks, attach.Container{Manager: Manager, Key: o.ContainerID})
	return slices.ContainsFunc(all, func(e *named.Endpoint) bool { return len(e.Wanted.Ports) > 0 })
}

// checkNamespace returns an error if the operand is not the network namespace of a container.
func (c *call) checkNamespace() error {
	err := netns.CheckOther(c.line.Operand)
	switch {
	case errors.Is(err, netns.ErrCurrent):
		return failure("target netns is the same as the host netns")
	case err != nil:
		return failure("invalid namespace path: %s", ioError(err))
	}
	return nil
}

func (c *call) loopbackUp() error {
	ns, err := netns.Open(c.line.Operand)
	if err != nil {
		return err
	}
	defer ns.Close()
	lo, err := link.Find(ns, "lo")
	if err != nil {
		return err
	}
	return lo.Up()
}

// shortID is the length of an id as Podman shows it.
const shortID = 12

// container returns the container that a call is about.
func (c *call) container(o *options) attach.Container {
	name := o.ContainerName
	if name == "" {
		name = o.ContainerID[:min(len(o.ContainerID), shortID)]
	}
	return attach.Container{Manager: Manager, Key: o.ContainerID, ID: o.ContainerID, Engine: find.Podman, Name: name, Path: c.line.Operand}
}

// attempts is how often a container is connected to a network that others remove meanwhile, with its last
// container, or by a name that others take.
const attempts = 5

// join connects a container to a network, which is made if it does not exist.
func (c *call) join(ctx context.Context, o *options, j *join) (any, error) {
	if j.plugin != "" {
		return c.setUpByPlugin(ctx, o, j)
	}
	var err error
	for range attempts {
		var name string
		if name, err = c.findOrMake(ctx, j); err != nil {
			return nil, err
		}
		conn := j.conn
		chosen := conn.HostInterface == "" && (j.spec.Driver == named.Bridge || j.spec.Driver == named.Unmanaged)
		if chosen {
			if conn.HostInterface, err = freeVeth(); err != nil {
				return nil, err
			}
		}
		var got *named.Result
		if got, err = named.Join(ctx, c.Networks, name, c.container(o), conn); err == nil {
			c.noAutoconf(j)
			return c.checkNames(ctx, j, got, c.status(o, j, got))
		}
		var taken *attach.TakenError
		sameName := errors.As(err, &taken) && taken.Resource == "link" && taken.Name == conn.HostInterface
		switch {
		case errors.As(err, new(*named.NoNetworkError)), sameName && chosen:
			continue
		case sameName:
			err = failure("create veth pair: interface %s already exists on container namespace or %s exists on host namespace: Netlink error: File exists (os error 17)", j.conn.Interface, taken.Name)
		}
		return nil, errors.Join(err, named.RemoveUnused(context.WithoutCancel(ctx), c.Networks, name))
	}
	return nil, err
}

// freeVeth returns the name that the kernel would give to the host's end of the next pair, unless there are
// gaps between those that exist. It looks up a few, mostly those around the last one that it has found.
func freeVeth() (string, error) {
	h, err := link.HandleHere()
	if err != nil {
		return "", err
	}
	defer h.Close()
	name := func(i int) string { return fmt.Sprintf("veth%d", i) }
	taken := func(i int) bool {
		_, err := h.LinkByName(name(i))
		return err == nil
	}
	hint := int(lastFree.Load())
	for _, i := range []int{hint, hint + 1} {
		if !taken(i) && (i == 0 || taken(i-1)) {
			lastFree.Store(int64(i))
			return name(i), nil
		}
	}
	last, free := -1, 0 // the name before free is taken
	for taken(free) {
		last, free = free, 2*free+1
	}
	for free-last > 1 {
		if i := (last + free) / 2; taken(i) {
			last = i
		} else {
			free = i
		}
	}
	lastFree.Store(int64(free))
	return name(free), nil
}

// lastFree is the number that freeVeth has found last.
var lastFree atomic.Int64

// findOrMake returns the name of cleat's network for that of Podman: one that a person has made, one that
// another container is on, or a new one.
func (c *call) findOrMake(ctx context.Context, j *join) (string, error) {
	store := named.Store{Store: c.Networks.Attach.Store}
	for _, name := range j.network.names() {
		n, err := store.Network(name)
		if errors.As(err, new(*named.NoNetworkError)) {
			j.spec.Name = name
			return name, c.make(ctx, j)
		}
		if err != nil {
			return "", err
		}
		if n.Manager == Manager && n.ManagerID == j.network.ID || n.Manager == "" && n.Serves(j.spec) {
			return name, c.follow(ctx, n, j)
		}
	}
	return "", failure("network %s: other networks have the names %v", j.network.Name, j.network.names())
}

// make creates the network.
func (c *call) make(ctx context.Context, j *join) error {
	spec := j.spec
	if spec.Parent == "" && spec.Driver != named.Bridge {
		var err error
		if spec.Parent, err = named.DefaultDevice(); err != nil {
			return err
		}
	}
	_, err := named.Create(ctx, c.Networks, spec)
	var taken *attach.TakenError
	var bad *attach.SpecError
	switch {
	case errors.As(err, &taken) && taken.Resource == "name":
		return nil // another call has made it
	case errors.As(err, &bad) && bad.Param == "vrf":
		return vrfError(spec.VRF)
	case errors.As(err, &bad) && bad.Param == "parent" && spec.Driver == named.Unmanaged:
		return failure("in unmanaged mode, the bridge must already exist on the host: Netlink error: No such device (os error 19)")
	}
	return err
}

// vrfError returns the error for a VRF that the host does not have.
func vrfError(name string) error {
	h, err := link.HandleHere()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(name)
	if err != nil {
		return failure("get vrf to set up bridge interface: Netlink error: No such device (os error 19)")
	}
	kind := l.Type()
	if kind == "" || kind == "device" { // of hardware, or lo
		return failure("could not determine namespace link kind for vrf %s", name)
	}
	return failure("vrf %s already exists but is a %s interface", name, strings.ToUpper(kind[:1])+kind[1:])
}

// follow changes what Podman has changed of a network that containers are on.
func (c *call) follow(ctx context.Context, n *named.Network, j *join) error {
	if n.Manager == "" || slices.Equal(n.DNS, j.spec.DNS) {
		return nil
	}
	spec := n.NetworkSpec
	spec.DNS = j.spec.DNS
	return named.Change(ctx, c.Networks, spec)
}

// checkNames disconnects a container again whose network has names, but no address of the host at which it
// could ask for them.
func (c *call) checkNames(ctx context.Context, j *join, got *named.Result, st *status) (*status, error) {
	if !j.network.DNS || j.spec.Driver != named.Unmanaged || len(st.Servers) > 0 {
		return st, nil
	}
	err := failure("bridge '%s' in unmanaged mode has no usable IP addresses. Aardvark-dns requires at least one address (should not be an IPv6 link-local address) to bind to. Please add an IP address or disable DNS for this network (--disable-dns).", j.network.device())
	return nil, errors.Join(err, named.Leave(context.WithoutCancel(ctx), c.Networks, got.Network.Name, got.Endpoint.Container))
}

// status describes a container's link.
func (c *call) status(o *options, j *join, got *named.Result) *status {
	st := &status{Search: []string{}, Servers: []netip.Addr{}, Interfaces: map[string]interfaceState{}}
	on := interfaceState{MAC: got.Endpoint.MAC.String(), Subnets: []subnetState{}}
	if got.Endpoint.MAC == (link.MAC{}) {
		on.MAC = c.macOf(got.Endpoint.Interface)
	}
	spec := got.Link.Attachment.Spec
	for _, a := range spec.Addresses {
		on.Subnets = append(on.Subnets, subnetState{Gateway: j.network.gatewayOf(a.Addr()), Address: a})
	}
	if lease := got.Link.Lease; lease != nil {
		s := subnetState{Address: lease.Address}
		for _, r := range lease.Routes {
			if r.To.Bits() == 0 && r.Via.IsValid() {
				s.Gateway = &r.Via
			}
		}
		on.Subnets = append(on.Subnets, s)
		st.Servers = append(st.Servers, lease.DNS...)
	}
	st.Interfaces[got.Endpoint.Interface] = on
	switch {
	case j.network.DNS && got.Network.Manager == Manager && !got.Network.NoNames:
		st.Search, st.Servers = []string{searchDomain}, got.NameServers()
	case j.network.DNS && got.Network.Manager == "":
		st.Search, st.Servers = []string{got.Network.Name}, got.NameServers()
	case len(o.DNSServers) > 0:
		st.Servers = addrs(o.DNSServers)
	}
	return st
}

// gatewayOf returns the gateway for an address of the network; nil if it has none.
func (n *network) gatewayOf(a netip.Addr) *netip.Addr {
	for _, s := range n.Subnets {
		if s.Subnet.Contains(a) && s.Gateway != nil {
			return &s.Gateway.Addr
		}
	}
	return nil
}

// noAutoconf keeps a container from choosing addresses by the advertisements of routers on a parent's
// network.
func (c *call) noAutoconf(j *join) {
	if j.spec.Driver == named.Bridge {
		return
	}
	ns, err := netns.Open(c.line.Operand)
	if err != nil {
		return
	}
	defer ns.Close()
	_ = ns.Do(func() error { // without IPv6 there is no such file
		return os.WriteFile("/proc/sys/net/ipv6/conf/"+j.conn.Interface+"/autoconf", []byte("0"), 0)
	})
}

// macOf returns the Ethernet address of a device of the container.
func (c *call) macOf(device string) (text string) {
	ns, err := netns.Open(c.line.Operand)
	if err != nil {
		return ""
	}
	defer ns.Close()
	_ = ns.Do(func() error {
		i, err := net.InterfaceByName(device)
		if err == nil {
			text = i.HardwareAddr.String()
		}
		return err
	})
	return text
}
