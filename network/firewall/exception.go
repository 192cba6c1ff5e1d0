package firewall

import (
	"net/netip"
	"slices"
)

// Exempt are packets for which chains of other programs need exceptions.
type Exempt struct {
	// Devices are the starts of the names of devices from and to which the packets go.
	Devices []string
	// Sources are where packets come from whose device is in a VRF. Other programs see the VRF in its place,
	// where others send packets as well.
	Sources []VRFPrefix
}

func (x Exempt) validate() error {
	for _, d := range x.Devices {
		if err := validateDevice(d + "0"); err != nil {
			return err
		}
	}
	for _, s := range x.Sources {
		if !s.Prefix.IsValid() {
			return invalid("prefix %q of VRF %s", s.Prefix, s.VRF)
		}
		if err := validateDevice(s.VRF); err != nil {
			return err
		}
	}
	return nil
}

// exception is a rule that accepts packets from or to devices, in a chain of another program.
type exception struct {
	option string // "-i": from the devices, "-o": to them
	name   string
	prefix bool         // the name is the start of names
	source netip.Prefix // of the packets; zero: any
}

// exceptions returns those that the table needs in a chain at a hook, in a table of a family: "ip", "ip6" or
// "inet".
func (t Table) exceptions(hook, family string, x Exempt) (all []exception) {
	if hook == "output" {
		return []exception{{option: "-o", name: t.doorway().in}}
	}
	for _, d := range x.Devices {
		all = append(all, exception{option: "-i", name: d, prefix: true}, exception{option: "-o", name: d, prefix: true})
	}
	for _, s := range x.Sources {
		if family == "inet" || family == familyOf(s.Prefix.Addr()).name {
			all = append(all, exception{option: "-i", name: s.VRF, source: s.Prefix.Masked()})
		}
	}
	return all
}

// iptables returns the condition as arguments of iptables, in the order in which it prints them.
func (e exception) iptables() (args []string) {
	if e.source.IsValid() {
		args = []string{"-s", e.source.String()}
	}
	name := e.name
	if e.prefix {
		name += "+"
	}
	return append(args, e.option, name)
}

// nft returns the rule in nft's language.
func (e exception) nft() string {
	key, name := "iifname", e.name
	if e.option == "-o" {
		key = "oifname"
	}
	if e.prefix {
		name += "*"
	}
	source := ""
	if e.source.IsValid() {
		source = familyOf(e.source.Addr()).name + " saddr " + e.source.String() + " "
	}
	return key + ` "` + name + `" ` + source + "accept"
}

// foreignRule is what counts of a rule of another program for the place of exceptions.
type foreignRule struct {
	exception exception // zero: it is not one of the table's
	accepts   bool      // it accepts whatever it matches
}

// placed reports whether all wanted exceptions are among rules, before the one with the index
// end, and behind all rules that do anything but accept. So rules of the host's owner about
// the same devices remain in force.
func placed(rules []foreignRule, end int, wanted []exception) bool {
	missing := slices.Clone(wanted)
	for _, r := range rules[:end] {
		switch {
		case r.exception != exception{}:
			missing = slices.DeleteFunc(missing, func(e exception) bool { return e == r.exception })
		case !r.accepts:
			missing = slices.Clone(wanted) // those before it are too early
		}
	}
	return len(missing) == 0
}
