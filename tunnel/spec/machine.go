package spec

import (
	"fmt"
	"net/netip"
	"slices"

	"cleat/internal/spell"
)

// Machine is the state of a machine, as far as it matters to a tunnel.
type Machine struct {
	Devices      []Device
	OwnDevice    string // device of the running tunnel whose file is read again; "": none
	ForwardsIPv4 bool   // sysctl net.ipv4.ip_forward
	ForwardsIPv6 bool   // sysctl net.ipv6.conf.all.forwarding
}

// Device is a network device.
type Device struct {
	Name      string
	MTUBytes  int
	Addresses []netip.Addr // without zones
}

// CheckMachine adds warnings about what the file needs and the machine does not have at
// present. None is an error, because devices come and go while a tunnel runs. It is
// called at most once for a File.
func (f *File) CheckMachine(m Machine) {
	c := machineChecker{&f.found, &f.draft, m}
	for i := range f.draft.Paths {
		c.checkPath(pathKey(i), &f.draft.Paths[i])
	}
	for i, a := range f.draft.Addresses {
		if d := m.owner(a.Addr()); d != "" && d != f.draft.Device && d != m.OwnDevice {
			c.warn(elementKey("$.address", i), "address %s is also assigned to device %s of this machine", a.Addr(), d)
		}
	}
	c.checkForwarding()
	f.setResult()
}

type machineChecker struct {
	*findings
	t *Tunnel
	m Machine
}

func (c machineChecker) checkPath(at string, p *Path) {
	i := slices.IndexFunc(c.m.Devices, func(d Device) bool { return d.Name == p.Device })
	if p.Device != "" && i < 0 {
		e := c.warn(at+".device", "no device %s at present: %s waits for it", p.Device, pathTitle(p.Name))
		if near := spell.Nearest(p.Device, c.m.names()); near != "" {
			e.Hint = fmt.Sprintf("did you mean %q?", near)
		}
		return
	}
	if p.Local.IsValid() {
		c.checkLocal(at, p)
	} else if i >= 0 && p.Remote.IsValid() && !c.m.Devices[i].reaches(p.Remote.Addr()) {
		c.warn(at+".device", "device %s has no %s address at present: %s waits for one", p.Device, family(p.Remote.Addr()), pathTitle(p.Name))
	}
	if i >= 0 && p.MTUBytes > c.m.Devices[i].MTUBytes {
		c.warn(at+".mtu", "mtu %d exceeds the %d of device %s", p.MTUBytes, c.m.Devices[i].MTUBytes, p.Device)
	}
}

func (c machineChecker) checkLocal(at string, p *Path) {
	switch owner := c.m.owner(p.Local); {
	case owner == "":
		c.warn(at+".local", "address %s is not on this machine at present: %s waits for it", p.Local, pathTitle(p.Name))
	case p.Device != "" && owner != p.Device:
		c.warn(at+".local", "address %s belongs to device %s, but %s is bound to %s", p.Local, owner, pathTitle(p.Name), p.Device)
	}
}

// checkForwarding warns if there are routes but forwarding is off, so that no other host
// can use them.
func (c machineChecker) checkForwarding() {
	for _, f := range []struct {
		is6, on bool
		sysctl  string
	}{
		{false, c.m.ForwardsIPv4, "net.ipv4.ip_forward"},
		{true, c.m.ForwardsIPv6, "net.ipv6.conf.all.forwarding"},
	} {
		if i := slices.IndexFunc(c.t.Routes, func(r netip.Prefix) bool { return r.Addr().Is6() == f.is6 }); i >= 0 && !f.on {
			c.warn("$.routes", "forwarding is off: only this machine can reach %s", c.t.Routes[i]).Hint =
				"to forward for other hosts: sysctl -w " + f.sysctl + "=1"
		}
	}
}

// owner returns the device that has an address, or "".
func (m Machine) owner(a netip.Addr) string {
	for _, d := range m.Devices {
		if slices.Contains(d.Addresses, a) {
			return d.Name
		}
	}
	return ""
}

func (m Machine) names() []string {
	var names []string
	for _, d := range m.Devices {
		names = append(names, d.Name)
	}
	return names
}

// reaches reports whether the device has an address from which packets may go to a: one
// of its family, and a global one unless a is link-local.
func (d Device) reaches(a netip.Addr) bool {
	return slices.ContainsFunc(d.Addresses, func(own netip.Addr) bool {
		return own.Is4() == a.Is4() && (!own.IsLinkLocalUnicast() || a.IsLinkLocalUnicast())
	})
}
