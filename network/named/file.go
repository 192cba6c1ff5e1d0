package named

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"cleat/internal/rate"
	"cleat/internal/yamlfile"
	"cleat/link"
	"cleat/network/attach"
)

// File is a file that describes networks and who is on them. Apply makes the host so, and
// Export writes one.
type File struct {
	Networks map[string]FileNetwork `yaml:"networks"`
}

// FileNetwork is a network in a File. Its fields are those of NetworkSpec as they are written.
type FileNetwork struct {
	Driver        string                   `yaml:"driver,omitempty"`
	Span          bool                     `yaml:"span,omitempty"` // default driver: routed
	Parent        string                   `yaml:"parent,omitempty"`
	Mode          string                   `yaml:"mode,omitempty"`
	VLAN          int                      `yaml:"vlan,omitempty"`
	Subnets       []FileSubnet             `yaml:"subnets,omitempty"`
	Reserve       map[string]string        `yaml:"reserve,omitempty"` // by container: an address, or two separated by a comma
	IPv6          bool                     `yaml:"ipv6,omitempty"`
	DHCP          bool                     `yaml:"dhcp,omitempty"`
	Internal      bool                     `yaml:"internal,omitempty"`
	NAT           *bool                    `yaml:"nat,omitempty"` // default: true
	HostAccess    string                   `yaml:"host_access,omitempty"`
	LargeSegments bool                     `yaml:"large_segments,omitempty"`
	Datapath      string                   `yaml:"datapath,omitempty"`
	MTU           int                      `yaml:"mtu,omitempty"`
	DNS           []string                 `yaml:"dns,omitempty"`
	Labels        map[string]string        `yaml:"labels,omitempty"`
	Rules         []string                 `yaml:"rules,omitempty"` // "allow …" or "deny …", as ParseRule reads it
	DefaultDeny   bool                     `yaml:"default_deny,omitempty"`
	Containers    map[string]FileContainer `yaml:"containers,omitempty"`
}

// FileSubnet is a subnet in a File.
type FileSubnet struct {
	Subnet  string   `yaml:"subnet"`
	Gateway string   `yaml:"gateway,omitempty"`
	Range   string   `yaml:"range,omitempty"`
	Exclude []string `yaml:"exclude,omitempty"`
}

// FileContainer is how a container is connected, in a File.
type FileContainer struct {
	IP             []string          `yaml:"ip,omitempty"`
	MAC            string            `yaml:"mac,omitempty"`
	Aliases        []string          `yaml:"aliases,omitempty"`
	Ports          []string          `yaml:"ports,omitempty"`
	BypassFirewall bool              `yaml:"bypass_firewall,omitempty"`
	Rate           string            `yaml:"rate,omitempty"`
	Interface      string            `yaml:"interface,omitempty"`
	DNS            *bool             `yaml:"dns,omitempty"` // whether its resolv.conf is written; default: true
	Labels         map[string]string `yaml:"labels,omitempty"`
}

// FileError is a mistake in a file.
type FileError struct {
	File         string
	Line, Column int
	Problem      string
	Use          string   // what to write instead; may be empty
	Word         string   // the wrong word; may be empty
	Known        []string // words that are valid; may be empty
}

func (e *FileError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Problem)
}

// desired is a network as a file wants it, with who is on it, by what is typed for a container.
type desired struct {
	spec       NetworkSpec
	containers map[string]Connection
}

// The most that a file may have. A container with an address and a port has 12 tokens.
const (
	maxFile   = 4 << 20 // bytes
	maxTokens = 200_000 // of YAML; its parser takes seconds for as many
)

// ReadFile reads a file for Apply. The error is a *FileError for a mistake in it.
func ReadFile(path string) (*Wanted, error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	if err != nil {
		return nil, fmt.Errorf("read networks: %w", err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read networks: %w", err)
	}
	return ParseFile(path, text)
}

// Wanted is what a valid file describes.
type Wanted struct{ networks []desired }

// ParseFile parses the text of a file. name is its name in messages.
func ParseFile(name string, text []byte) (*Wanted, error) {
	var f File
	doc, problems := yamlfile.ReadUpTo(text, &f, maxTokens)
	if len(problems) > 0 {
		var errs []error
		for _, p := range problems {
			errs = append(errs, &FileError{File: name, Line: p.Line, Column: p.Column, Problem: p.Text, Word: p.Word, Known: p.Known})
		}
		return nil, errors.Join(errs...)
	}
	w := &Wanted{}
	var errs []error
	taken := newClaims()
	for _, network := range slices.Sorted(maps.Keys(f.Networks)) {
		path := "$.networks." + network
		fail := func(path string, err error) {
			at := doc.Place(path)
			e := &FileError{File: name, Line: at.Line, Column: at.Column, Problem: err.Error()}
			var spec *attach.SpecError
			if errors.As(err, &spec) {
				e.Known, e.Use, e.Word = spec.Allowed, spec.Use, spec.Value
			}
			errs = append(errs, e)
		}
		d, err := f.Networks[network].desired(network)
		if err == nil {
			err = taken.network(&d.spec)
		}
		if err != nil {
			fail(path, err)
			continue
		}
		for i, text := range f.Networks[network].Rules {
			r, err := f.rule(network, text)
			if err != nil {
				fail(fmt.Sprintf("%s.rules[%d]", path, i), err)
				continue
			}
			d.spec.Rules = append(d.spec.Rules, r.String())
		}
		for _, ref := range slices.Sorted(maps.Keys(f.Networks[network].Containers)) {
			wanted, err := f.Networks[network].Containers[ref].connection()
			if err == nil {
				err = (&Network{NetworkSpec: d.spec}).checkConnection(&wanted)
			}
			if err == nil {
				err = taken.container(&d.spec, ref, &wanted)
			}
			if err != nil {
				fail(path+".containers."+ref, err)
				continue
			}
			d.containers[ref] = wanted
		}
		w.networks = append(w.networks, *d)
	}
	return w, errors.Join(errs...)
}

// rule parses a rule of a network. A network is one that the file has.
func (f File) rule(network, text string) (Rule, error) {
	verb, rest, _ := strings.Cut(text, " ")
	if verb != "allow" && verb != "deny" {
		return Rule{}, badSpec("RULE", text, "want allow or deny first")
	}
	r, err := ParseRule(verb == "allow", rest, func(name string) bool { _, has := f.Networks[name]; return has })
	if err == nil && r.home() != network {
		err = badSpec("RULE", text, "belongs to network "+r.home())
	}
	return r, err
}

func (f FileNetwork) desired(name string) (*desired, error) {
	d := &desired{containers: map[string]Connection{}, spec: NetworkSpec{Name: name, Driver: f.Driver, Parent: f.Parent, Mode: f.Mode, VLAN: f.VLAN,
		IPv6: f.IPv6, DHCP: f.DHCP, Internal: f.Internal, NoNAT: f.NAT != nil && !*f.NAT, HostAccess: f.HostAccess,
		LargeSegments: f.LargeSegments, Datapath: f.Datapath, MTU: f.MTU, Labels: f.Labels, DefaultDeny: f.DefaultDeny, Spans: f.Span}}
	if f.Span && f.Driver == "" {
		d.spec.Driver = Routed
	}
	for _, s := range f.Subnets {
		sub, err := s.parse()
		if err != nil {
			return nil, err
		}
		d.spec.Subnets = append(d.spec.Subnets, sub)
	}
	var err error
	for name, text := range f.Reserve {
		if d.spec.Reserve == nil {
			d.spec.Reserve = Reservations{}
		}
		if d.spec.Reserve[name], err = ParseReservation(text); err != nil {
			return nil, err
		}
	}
	if d.spec.DNS, err = parseAll("dns", f.DNS, netip.ParseAddr); err != nil {
		return nil, err
	}
	return d, d.spec.normalize()
}

func (f FileSubnet) parse() (sub Subnet, err error) {
	if sub.Prefix, err = netip.ParsePrefix(f.Subnet); err != nil {
		return sub, badSpec("subnet", f.Subnet, "want a network with its prefix length, e.g. 10.20.0.0/24")
	}
	if f.Gateway != "" {
		if sub.Gateway, err = netip.ParseAddr(f.Gateway); err != nil {
			return sub, badSpec("gateway", f.Gateway, "want an IP address")
		}
	}
	if f.Range != "" {
		if sub.Range, err = netip.ParsePrefix(f.Range); err != nil {
			return sub, badSpec("range", f.Range, "want a network with its prefix length")
		}
	}
	sub.Exclude, err = parseAll("exclude", f.Exclude, ParseNetwork)
	return sub, err
}

// ParseNetwork parses a network, or an address as a network of one.
func ParseNetwork(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	return p.Masked(), err
}

func parseAll[T any](param string, texts []string, parse func(string) (T, error)) ([]T, error) {
	var all []T
	for _, text := range texts {
		v, err := parse(text)
		if err != nil {
			return nil, badSpec(param, text, "is not valid")
		}
		all = append(all, v)
	}
	return all, nil
}

func (f FileContainer) connection() (c Connection, err error) {
	c = Connection{Aliases: f.Aliases, Interface: f.Interface, NoDNS: f.DNS != nil && !*f.DNS, Labels: f.Labels}
	if c.Addresses, err = parseAll("ip", f.IP, netip.ParseAddr); err != nil {
		return c, err
	}
	if f.MAC != "" {
		if c.MAC, err = link.ParseMAC(f.MAC); err != nil {
			return c, badSpec("mac", f.MAC, "want six hexadecimal bytes")
		}
	}
	for _, text := range f.Ports {
		p, err := ParsePort(text)
		if err != nil {
			return c, err
		}
		p.BypassFirewall = f.BypassFirewall
		c.Ports = append(c.Ports, p)
	}
	if f.Rate != "" {
		r, err := rate.Parse(f.Rate)
		if err != nil {
			return c, badSpec("rate", f.Rate, err.Error())
		}
		c.RateBitsPerSec = int64(r)
	}
	return c, nil
}

// Export returns the file that describes the networks of a state directory.
func Export(cfg Config) (*File, error) {
	store := cfg.store()
	networks, err := store.Networks()
	if err != nil {
		return nil, err
	}
	f := &File{Networks: map[string]FileNetwork{}}
	for _, n := range networks {
		if n.Manager != "" {
			continue // its engine makes it
		}
		endpoints, err := store.Endpoints(n.Name)
		if err != nil {
			return nil, err
		}
		f.Networks[n.Name] = n.export(endpoints)
	}
	return f, nil
}

func (n *Network) export(endpoints []*Endpoint) FileNetwork {
	f := FileNetwork{Driver: n.Driver, Span: n.Spans, Parent: n.Parent, Mode: n.Mode, VLAN: n.VLAN, DHCP: n.DHCP, Internal: n.Internal,
		HostAccess: n.HostAccess, LargeSegments: n.LargeSegments, Datapath: n.Datapath, MTU: n.MTU,
		DNS: texts(n.DNS), Labels: n.Labels, Rules: n.Rules, DefaultDeny: n.DefaultDeny}
	if n.NoNAT {
		f.NAT = new(bool)
	}
	for _, s := range n.Subnets {
		sub := FileSubnet{Subnet: s.Prefix.String(), Gateway: s.Gateway.String(), Exclude: texts(s.Exclude)}
		if s.Range.IsValid() {
			sub.Range = s.Range.String()
		}
		f.Subnets = append(f.Subnets, sub)
	}
	for name, addrs := range n.Reserve {
		if f.Reserve == nil {
			f.Reserve = map[string]string{}
		}
		f.Reserve[name] = strings.Join(texts(addrs), ",")
	}
	for _, e := range endpoints {
		if e.Container.Manager != "" {
			continue // its engine connects it
		}
		if f.Containers == nil {
			f.Containers = map[string]FileContainer{}
		}
		f.Containers[e.Container.QualifiedName()] = e.export()
	}
	return f
}

func (e *Endpoint) export() FileContainer {
	w := e.Wanted
	f := FileContainer{IP: texts(w.Addresses), Aliases: w.Aliases, Ports: texts(w.Ports), Interface: w.Interface, Labels: w.Labels}
	if w.MAC != (link.MAC{}) {
		f.MAC = w.MAC.String()
	}
	if w.RateBitsPerSec != 0 {
		f.Rate = rate.Text(w.RateBitsPerSec)
	}
	if w.NoDNS {
		f.DNS = new(bool)
	}
	f.BypassFirewall = slices.ContainsFunc(w.Ports, func(p Port) bool { return p.BypassFirewall })
	return f
}

func texts[T fmt.Stringer](all []T) []string {
	var out []string
	for _, v := range all {
		out = append(out, v.String())
	}
	return out
}

// differs returns the names of the fields in which a network differs from what a file wants;
// what the file leaves to us counts as equal.
func (n *Network) differs(want NetworkSpec) []string {
	var fields []string
	add := func(name string, differs bool) {
		if differs {
			fields = append(fields, name)
		}
	}
	add("driver", n.Driver != want.Driver)
	add("span", n.Spans != want.Spans)
	add("parent", n.Parent != want.Parent)
	add("mode", cmp.Or(n.Mode, want.Mode) != cmp.Or(want.Mode, n.Mode))
	add("vlan", n.VLAN != want.VLAN)
	add("mtu", n.MTU != want.MTU)
	add("large_segments", n.LargeSegments != want.LargeSegments)
	add("datapath", cmp.Or(n.Datapath, DatapathAuto) != cmp.Or(want.Datapath, DatapathAuto))
	add("dhcp", n.DHCP != want.DHCP)
	for _, s := range want.Subnets {
		add("subnet "+s.Prefix.String(), !slices.ContainsFunc(n.Subnets, func(o Subnet) bool { return o.Prefix == s.Prefix && (o.Gateway == s.Gateway || n.hasOwnGateway(s)) }))
	}
	if len(want.Subnets) > 0 {
		add("subnets", len(want.Subnets) != len(n.Subnets))
	}
	return fields
}

// String returns the fields in a message.
func fieldsText(fields []string) string { return strings.Join(fields, ", ") }

// hasOwnGateway reports whether a subnet of a file has the default gateway, while the network has
// the gateway that the host uses on the parent's network.
func (n *Network) hasOwnGateway(want Subnet) bool {
	return !n.OnHost() && want.Gateway == want.Prefix.Addr().Next()
}
