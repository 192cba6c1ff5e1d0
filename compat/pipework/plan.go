package pipework

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cleat/internal/columns"
	"cleat/internal/spell"
	"cleat/link"
	"cleat/network/attach"
)

// Device is a link of the host.
type Device struct {
	Name       string
	Kind       string // the kernel's name, e.g. "bridge", "openvswitch"
	InfiniBand bool
	Up         bool
	Stacked    bool // on top of another device, whose address it may have
	MAC        link.MAC
	Radio      string // of a wireless device, e.g. "phy0"; otherwise ""
}

// Plan is what to do.
type Plan struct {
	Spec  attach.Spec
	Raise string   // a device of the host to set up; may be empty
	Notes []string // options without effect
}

// Plan decides what is meant, on a host with these devices.
func (o Options) Plan(devices []Device) (Plan, error) {
	p := Plan{Spec: attach.Spec{Name: cmp.Or(o.Link, defaultLink), MAC: o.MAC, Peer: o.HostEnd}}
	if o.IP.IsValid() {
		p.Spec.Addresses = []netip.Prefix{o.IP}
	}
	for _, take := range []func(*Plan) error{
		func(p *Plan) error { return o.takeKind(p, devices) }, o.takeVLAN, o.takeGateway, o.takeDHCP,
	} {
		if err := take(&p); err != nil {
			return p, err
		}
	}
	if o.HostEnd != "" && p.Spec.Kind != "bridge" && p.Spec.Kind != "ovs" {
		p.Spec.Peer = ""
		p.Notes = append(p.Notes, "-l "+o.HostEnd+" has no effect: only a link on a bridge has another end")
	}
	if o.HostName != "" && o.DHCP == nil {
		p.Notes = append(p.Notes, "-H "+o.HostName+" has no effect without DHCP")
	}
	return p, nil
}

// takeKind decides what HOSTIF is.
func (o Options) takeKind(p *Plan, devices []Device) error {
	w := &p.Spec
	d, err := o.device(devices)
	switch {
	case err != nil:
		return err
	case d != nil:
		w.Parent = d.Name
		return o.takeDevice(p, *d)
	case strings.HasPrefix(o.Host, "br"):
		w.Kind, w.Parent = "bridge", o.Host
	case strings.HasPrefix(o.Host, "ovs"):
		w.Kind, w.Parent = "ovs", o.Host
	case strings.HasPrefix(o.Host, "dummy"):
		w.Kind = "dummy"
	default:
		return noDevice(o.Host, devices)
	}
	return nil
}

// takeDevice decides what to do with an existing device.
func (o Options) takeDevice(p *Plan, d Device) error {
	w := &p.Spec
	switch {
	case d.Kind == "bridge":
		w.Kind = "bridge"
		return nil
	case d.Kind == "openvswitch":
		w.Kind = "ovs"
		return nil
	case d.InfiniBand:
		return o.takeInfiniBand(w, d)
	case o.DirectPhys && o.VLAN == "" && d.Radio != "":
		return lacking(fmt.Sprintf("share it, `pipework %s --ipvlan %s …`, or move its radio: iw phy %s set netns PID", columns.Word(d.Name), columns.Word(o.Guest), columns.Word(d.Radio)),
			"%s is a wireless device: it moves only with its radio %s, which is not supported", d.Name, d.Radio)
	case o.DirectPhys && o.VLAN == "":
		w.Kind = "phys"
		return nil
	case o.DirectPhys:
		w.Kind = "vlan"
	case o.IPvlan:
		w.Kind, w.Mode = "ipvlan", "l3"
	default:
		w.Kind, w.Mode = "macvlan", "bridge"
		if d.Radio != "" {
			p.Notes = append(p.Notes, d.Name+" is wireless: access points drop packets with other Ethernet addresses; use --ipvlan to share its address")
		}
	}
	if !d.Up {
		p.Raise = d.Name
	}
	return nil
}

// takeInfiniBand moves the device.
func (o Options) takeInfiniBand(w *attach.Spec, d Device) error {
	if o.MAC != (link.MAC{}) {
		return wrong("leave out MAC", "%s is an InfiniBand device: its address can't be set", d.Name)
	}
	if !o.DirectPhys || o.VLAN != "" {
		child, pkey := d.Name+".child", ""
		if o.VLAN != "" {
			child, pkey = d.Name+"."+o.VLAN, " pkey 0x"+o.VLAN
		}
		return lacking(fmt.Sprintf("create a child and move it:\nip link add link %s name %s type ipoib%s\npipework --direct-phys %s -i %s %s …", columns.Word(d.Name), columns.Word(child), pkey, columns.Word(child), columns.Word(cmp.Or(o.Link, d.Name)), columns.Word(o.Guest)),
			"%s is an InfiniBand device, of which no child can be created here", d.Name)
	}
	w.Kind = "ipoib"
	if o.Link == "" {
		w.Name = "ib0"
	}
	return nil
}

// device returns the device that HOSTIF names, or the one with the address after "mac:".
// It returns nil if there is none of that name.
func (o Options) device(devices []Device) (*Device, error) {
	text, byMAC := strings.CutPrefix(o.Host, "mac:")
	if !byMAC {
		if i := slices.IndexFunc(devices, func(d Device) bool { return d.Name == o.Host }); i >= 0 {
			return &devices[i], nil
		}
		return nil, nil
	}
	mac, err := link.ParseMAC(text)
	if err != nil {
		return nil, wrong("e.g. mac:02:00:5e:10:00:01", "%s: %q is not an Ethernet address", o.Host, text)
	}
	var have []Device
	for _, d := range devices {
		if d.MAC == mac {
			have = append(have, d)
		}
	}
	if below := slices.DeleteFunc(slices.Clone(have), func(d Device) bool { return d.Stacked }); len(below) > 0 {
		have = below // stacked devices have it from the lower one
	}
	switch len(have) {
	case 0:
		return nil, wrong("`ip link` lists the devices with their addresses", "no device of the host has the address %s", mac)
	case 1:
		return &have[0], nil
	}
	var names []string
	for _, d := range have {
		names = append(names, columns.Word(d.Name))
	}
	return nil, wrong("give one of: "+strings.Join(names, ", "), "several devices have the address %s", mac)
}

// noDevice returns the error for a HOSTIF that neither exists nor can be created.
func noDevice(name string, devices []Device) error {
	if phys, is := strings.CutPrefix(name, "phys:"); is {
		return lacking("pipework --direct-phys "+phys+" …", "phys: is not supported")
	}
	hint := "a bridge can be created if its name begins with br or ovs"
	var all []string
	for _, d := range devices {
		all = append(all, d.Name)
	}
	if near := spell.Nearest(name, all); near != "" {
		hint = fmt.Sprintf("did you mean %s? Or: %s", columns.Word(near), hint)
	}
	return wrong(hint, "the host has no device %q", name)
}

func (o Options) takeVLAN(p *Plan) error {
	if o.VLAN == "" {
		return nil
	}
	id, err := strconv.Atoi(o.VLAN)
	if err != nil || id < 1 || id > 4094 {
		return wrong("want 1…4094, e.g. @10", "@%s is not a VLAN id", o.VLAN)
	}
	p.Spec.VLAN = id
	return nil
}

// takeGateway gives a gateway outside the address's network a route of its own, as the
// script does.
func (o Options) takeGateway(p *Plan) error {
	gw := o.Gateway
	if !gw.IsValid() {
		return nil
	}
	p.Spec.Gateways = []netip.Addr{gw}
	if !o.IP.Contains(gw) && !gw.IsLinkLocalUnicast() {
		p.Spec.Routes = []attach.Route{{To: netip.PrefixFrom(gw, gw.BitLen())}}
	}
	return nil
}
