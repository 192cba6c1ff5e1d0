package spec

import (
	"fmt"
	"net/netip"
	"slices"

	"cleat/internal/spell"
)

// Machine is what of a machine matters to a tunnel, at one moment.
type Machine struct {
	Devices  []Device
	Own      string // device of the running tunnel whose file is read again; "": it is not
	Forward4 bool   // net.ipv4.ip_forward
	Forward6 bool   // net.ipv6.conf.all.forwarding
}

// Device is a network device.
type Device struct {
	Name      string
	MTUBytes  int
	Addresses []netip.Addr // without zones
}

// CheckMachine adds warnings about what the file needs of the machine that it
// does not have now. None is an error: devices come and go while a tunnel runs.
// A File is checked once.
func (f *File) CheckMachine(m Machine) {
	c := machineChecker{&f.found, &f.draft, m}
	for i := range f.draft.Paths {
		c.checkPath(pathAt(i), &f.draft.Paths[i])
	}
	for i, a := range f.draft.Addresses {
		if d := m.owner(a.Addr()); d != "" && d != f.draft.Device && d != m.Own {
			c.warn(childAt("$.address", i), "address %s is also that of the device %s of this machine", a.Addr(), d)
		}
	}
	c.checkForwarding()
	f.finish()
}

type machineChecker struct {
	*findings
	t *Tunnel
	m Machine
}

func (c machineChecker) checkPath(at string, p *Path) {
	i := slices.IndexFunc(c.m.Devices, func(d Device) bool { return d.Name == p.Device })
	if p.Device != "" && i < 0 {
		e := c.warn(at+".device", "there is no device %s on this machine now: %s waits for it", p.Device, pathTitle(p.Name))
		if near := spell.Nearest(p.Device, c.m.names()); near != "" {
			e.Hint = fmt.Sprintf("did you mean %q?", near)
		}
		return
	}
	if p.Local.IsValid() {
		c.checkLocal(at, p)
	} else if i >= 0 && p.Remote.IsValid() && !c.m.Devices[i].reaches(p.Remote.Addr()) {
		c.warn(at+".device", "device %s has no address of %s now: %s waits for one", p.Device, family(p.Remote.Addr()), pathTitle(p.Name))
	}
	if i >= 0 && p.MTUBytes > c.m.Devices[i].MTUBytes {
		c.warn(at+".mtu", "mtu %d is more than the %d of device %s", p.MTUBytes, c.m.Devices[i].MTUBytes, p.Device)
	}
}

func (c machineChecker) checkLocal(at string, p *Path) {
	switch owner := c.m.owner(p.Local); {
	case owner == "":
		c.warn(at+".local", "this machine does not have the address %s now: %s waits for it", p.Local, pathTitle(p.Name))
	case p.Device != "" && owner != p.Device:
		c.warn(at+".local", "the address %s is that of device %s, and %s is bound to %s", p.Local, owner, pathTitle(p.Name), p.Device)
	}
}

// checkForwarding warns where a tunnel leads to networks, but none can use it.
func (c machineChecker) checkForwarding() {
	for _, f := range []struct {
		is6, on bool
		sysctl  string
	}{
		{false, c.m.Forward4, "net.ipv4.ip_forward"},
		{true, c.m.Forward6, "net.ipv6.conf.all.forwarding"},
	} {
		if i := slices.IndexFunc(c.t.Routes, func(r netip.Prefix) bool { return r.Addr().Is6() == f.is6 }); i >= 0 && !f.on {
			c.warn("$.routes", "forwarding is off: only this machine itself reaches %s", c.t.Routes[i]).Hint =
				"for others behind it: sysctl -w " + f.sysctl + "=1"
		}
	}
}

// owner is the device that has an address, "" if none has.
func (m Machine) owner(a netip.Addr) string {
	for _, d := range m.Devices {
		if slices.Contains(d.Addresses, a) {
			return d.Name
		}
	}
	return ""
}

// names are those of the devices.
func (m Machine) names() []string {
	var names []string
	for _, d := range m.Devices {
		names = append(names, d.Name)
	}
	return names
}

// reaches tells whether the device has an address from which packets may go to
// a: one of its family, and a global one unless a is of the link itself.
func (d Device) reaches(a netip.Addr) bool {
	return slices.ContainsFunc(d.Addresses, func(own netip.Addr) bool {
		return own.Is4() == a.Is4() && (!own.IsLinkLocalUnicast() || a.IsLinkLocalUnicast())
	})
}
