package graph

import (
	"net/netip"
	"slices"
	"strings"

	"cleat/internal/columns"
	"cleat/network/survey"
)

// hubOf returns the link of the host that a network's wire has as its hub.
func (v *view) hubOf(net survey.Network) (nsLink, bool) {
	for i := range v.Namespaces {
		n := &v.Namespaces[i]
		if !isHost(n) {
			continue
		}
		for j := range n.Links {
			if net.Device != "" && n.Links[j].Name == net.Device {
				return nsLink{n, &n.Links[j]}, true
			}
		}
	}
	return nsLink{}, false
}

// readNetworks notes for links which networks they are part of.
func (v *view) readNetworks() {
	for _, net := range v.Networks {
		hub, ok := v.hubOf(net)
		if !ok {
			continue
		}
		v.networks[hub.link] = append(v.networks[hub.link], "network "+columns.Plain(net.Name))
		if net.Driver != "routed" {
			continue // a bridge or a parent shows that its links belong together
		}
		for _, m := range net.Members {
			if _, l := v.MemberLink(m); l != nil {
				v.hubs[l] = hub
			}
		}
	}
}

// describeNetwork describes a network in a line.
func describeNetwork(net survey.Network) string {
	words := []string{columns.Plain(net.Driver)}
	switch {
	case net.Driver == "bridge" || net.Driver == "routed":
		words[0] += " " + columns.Plain(net.Device)
	case net.Device != "":
		words[0] += " on " + columns.Plain(net.Device)
	}
	for _, p := range net.Subnets {
		words = append(words, p.String())
	}
	if net.Internal {
		words = append(words, "internal")
	}
	if net.DefaultDeny {
		words = append(words, "denies by default")
	}
	return strings.Join(words, ", ")
}

// describeMember says by which link a container is on a network, and which other names it has.
func (v *view) describeMember(m survey.Member) string {
	text := columns.Plain(m.Link)
	if m.Host != "" {
		text = "on host " + columns.Plain(m.Host)
	} else if _, l := v.MemberLink(m); l == nil && v.complete() {
		text = "not attached"
	}
	if len(m.Aliases) > 0 {
		text += ", also " + columns.Plain(strings.Join(m.Aliases, ", "))
	}
	return text
}

// complete reports whether the survey has read all namespaces.
func (v *view) complete() bool {
	return v.HiddenProcesses == 0 && !slices.ContainsFunc(v.Namespaces, func(n survey.Namespace) bool { return n.UnreadReason != "" })
}

func addrTexts(all []netip.Addr) (texts []string) {
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return texts
}

// networkRows returns the tree of a network: its containers with their ports, and its rules.
func (p *printer) networkRows(net survey.Network) []tableRow {
	var out []tableRow
	all := len(net.Members) + len(net.Rules)
	twigs := func(i, n int) (twig, bar string) {
		if i == n-1 {
			return "└─ ", "   "
		}
		return "├─ ", "│  "
	}
	for i, m := range net.Members {
		twig, bar := twigs(i, all)
		r := tableRow{first: twig, rest: bar, name: columns.Plain(m.Container),
			description: p.describeMember(m), addresses: addrTexts(m.Addresses), hasChildren: len(m.Ports) > 0}
		if r.hasChildren {
			r.rest += "│  "
		}
		out = append(out, r)
		for j, port := range m.Ports {
			twig, below := twigs(j, len(m.Ports))
			out = append(out, tableRow{first: bar + twig, rest: bar + below, name: "port", description: columns.Plain(port.String())})
		}
	}
	for i, text := range net.Rules {
		twig, bar := twigs(len(net.Members)+i, all)
		verb, rest, _ := strings.Cut(text, " ")
		out = append(out, tableRow{first: twig, rest: bar, name: columns.Plain(verb), description: columns.Plain(rest)})
	}
	return out
}

// networkHead writes the line above a network's tree.
func (p *printer) networkHead(net survey.Network) {
	label := columns.Clip("network "+columns.Plain(net.Name), p.Width/2)
	p.out.WriteString(p.style(bold+";"+cyan, label))
	for i, l := range columns.Wrap(describeNetwork(net), p.Width-columns.Of(label)-gap, p.Width-2*gap) {
		if i > 0 {
			p.out.WriteString("\n" + strings.Repeat(" ", gap))
		}
		p.out.WriteString(strings.Repeat(" ", gap) + p.style(dim, l))
	}
	p.out.WriteByte('\n')
}

// networkBox returns the box of a network.
func networkBox(v *view, net survey.Network, width float64) *box {
	w := newBox(v, networkRow, width)
	w.addLine(classTitle, net.Name, 0, false)
	subnets := net.Subnets
	net.Subnets = nil
	w.addParagraph(classSoft, "network, "+describeNetwork(net), 0, maxLines)
	for _, p := range subnets {
		w.addLine(classMono, p.String(), 0, false)
	}
	for _, m := range net.Members {
		w.addLine(className, m.Container, 0, true)
		w.addParagraph(classSoft, v.describeMember(m), 1, maxLines)
		for _, a := range m.Addresses {
			w.addLine(classMono, a.String(), 1, false)
		}
		for _, p := range m.Ports {
			w.addParagraph(classMono, "port "+p.String(), 1, maxLines)
		}
	}
	for i, r := range net.Rules {
		class := classSoft
		if strings.HasPrefix(r, "deny") {
			class = classWarn
		}
		before := len(w.box.lines)
		w.addParagraph(class, r, 0, maxLines)
		if i == 0 && len(w.box.lines) > before {
			w.box.lines[before].gapAbove = true
		}
	}
	return w.box
}
