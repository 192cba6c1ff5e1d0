package pipework

import (
	"cmp"
	"strings"

	"cleat/network/attach"
)

// takeDHCP requests an address from a server, if there can be one.
func (o Options) takeDHCP(p *Plan) error {
	if o.DHCP == nil {
		return nil
	}
	const byHand = "give an address, ADDRESS/LENGTH[@GATEWAY]"
	w := &p.Spec
	switch {
	case w.Kind == "dummy":
		return wrong(byHand, "%s: a dummy has no network, so no DHCP server can answer", o.DHCP.Client)
	case w.Kind == "ipvlan":
		return lacking("`cleat attach "+o.Guest+" ipvlan "+w.Parent+" --dhcp` uses mode l2, which supports DHCP; without --ipvlan it is a macvlan",
			"%s: --ipvlan uses mode l3, which carries no broadcasts, so no DHCP server can answer", o.DHCP.Client)
	case w.Kind == "ipoib":
		return lacking(byHand+", or 0/0 and start a DHCP client in the container", "%s: DHCP on InfiniBand is not supported", o.DHCP.Client)
	}
	if o.Family == 6 {
		p.Notes = append(p.Notes, "-a inet6 has no effect: addresses from DHCP are IPv4")
	}
	w.DHCP, w.DHCPHostName = true, o.HostName
	return o.DHCP.takeOptions(p.note, w)
}

func (p *Plan) note(text string) { p.Notes = append(p.Notes, text) }

// takeOptions parses options for the client. Options about how long it runs and how much
// it prints are ignored.
func (d DHCP) takeOptions(note func(string), w *attach.Spec) error {
	words := strings.Fields(d.Options)
	if d.Client == "dhcpcd" {
		if len(words) > 0 {
			note("options for dhcpcd have no effect, as in the script: " + d.Options)
		}
		return nil
	}
	for i := 0; i < len(words); i++ {
		name, value := words[i], ""
		if _, has := clientOptions[name]; has && i+1 < len(words) {
			i++
			value = words[i]
		}
		hostName, isHostName := strings.CutPrefix(value, clientOptions[name])
		switch {
		case strings.Contains(staying, " "+name+" "):
		case value != "" && isHostName:
			w.DHCPHostName = cmp.Or(w.DHCPHostName, hostName)
		default:
			return lacking("leave it out; -H NAME before GUEST sets the host name", "%s: option %q for the DHCP client is not supported", d.Client, strings.TrimSpace(name+" "+value))
		}
	}
	return nil
}

// staying are options of udhcpc and dhclient about whether they stay, quit or release at
// the end, and how much they print.
const staying = " -f -q -n -b -R -S -1 -d -v -4 -nw "

// clientOptions are options that set a host name, with the prefix of their values: of
// udhcpc -x, of dhclient -H.
var clientOptions = map[string]string{"-x": "hostname:", "-H": ""}
