package spanned

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cleat/bench/named"
	"cleat/internal/program"
)

// bird runs a BIRD on each host, which has a BGP session to all others and announces the host's blocks of addresses.
// Containers have a veth pair each, an address of their host's blocks, and a route to it. All of it is as Calico makes
// it without encapsulation. This package does what Calico's own programs do: it gives blocks to hosts, writes the
// configurations of BIRD, and attaches containers by ip(8).
type bird struct {
	namespaces
	hosts    []*birdHost
	attached map[*Container]attachment
	serial   int // of devices
}

type birdHost struct {
	*Host
	blocks []netip.Prefix
	taken  map[netip.Addr]bool
}

type attachment struct {
	device string // on the host
	addr   netip.Addr
}

const (
	blockBits  = 26    // Calico's blockSize
	asNumber   = 64512 // Calico's
	hostDevice = "cali"
)

var birdPrograms = []neededProgram{
	{"bird", "apt-get install bird2"},
	{"birdc", "apt-get install bird2"},
	{"ip", "apt-get install iproute2"},
	{"nsenter", "apt-get install util-linux"},
}

func openBird(Config) (driver, error) {
	return &bird{attached: map[*Container]attachment{}}, nil
}

func (b *bird) of(h *Host) *birdHost {
	return b.hosts[slices.IndexFunc(b.hosts, func(o *birdHost) bool { return o.Host == h })]
}

func (b *bird) join(ctx context.Context, h *Host) error {
	one := &birdHost{Host: h, taken: map[netip.Addr]bool{}}
	b.hosts = append(b.hosts, one)
	if err := b.addBlock(one); err != nil {
		return err
	}
	if err := h.Node.Sysctl("net/ipv4/ip_forward", "1"); err != nil {
		return err
	}
	// A host answers ARP requests for what it has a route to (proxy_arp), which is the gateway of containers here.
	if _, err := b.run(ctx, h, "ip", "route", "add", "default", "dev", uplink); err != nil {
		return err
	}
	path, err := program.Find("bird")
	if err != nil {
		return err
	}
	if err := b.write(one); err != nil {
		return err
	}
	if err := h.start(path, "-f", "-c", one.file("bird.conf"), "-s", one.file("bird.ctl")); err != nil {
		return err
	}
	if err := await(ctx, func() error { _, err := b.ask(ctx, one, "show", "status"); return err }); err != nil {
		return err
	}
	return b.configureOthers(ctx, h)
}

// uplink is the device by which hosts reach each other.
const uplink = "eth0"

func (one *birdHost) file(name string) string { return filepath.Join(one.dir, name) }

// addBlock gives a host the first block that no host has.
func (b *bird) addBlock(one *birdHost) error {
	block := netip.PrefixFrom(Subnet.Addr(), blockBits)
	for ; Subnet.Contains(block.Addr()); block = netip.PrefixFrom(afterBlock(block), blockBits) {
		if !slices.ContainsFunc(b.hosts, func(o *birdHost) bool { return slices.Contains(o.blocks, block) }) {
			one.blocks = append(one.blocks, block)
			return nil
		}
	}
	return fmt.Errorf("no block of %s is left for host %s", Subnet, one.Name)
}

// afterBlock returns the first address behind a block.
func afterBlock(block netip.Prefix) netip.Addr {
	a := block.Addr()
	for block.Contains(a) {
		a = a.Next()
	}
	return a
}

// address takes an address that no container has: from a new block if all blocks of the host are full.
func (b *bird) address(ctx context.Context, one *birdHost) (netip.Addr, error) {
	for i := 0; ; i++ {
		if i == len(one.blocks) {
			if err := b.addBlock(one); err != nil {
				return netip.Addr{}, err
			}
			if err := b.configure(ctx, one); err != nil {
				return netip.Addr{}, err
			}
		}
		for a := one.blocks[i].Addr(); one.blocks[i].Contains(a); a = a.Next() {
			if !one.taken[a] {
				one.taken[a] = true
				return a, nil
			}
		}
	}
}

// config returns a host's configuration of BIRD. What differs from BIRD's defaults is as Calico has it.
func (b *bird) config(one *birdHost) string {
	var t strings.Builder
	fmt.Fprintf(&t, "router id %s;\nlog stderr all;\n", one.Addr)
	fmt.Fprint(&t, "protocol device { scan time 2; }\n")
	// Next hops are found by the routes of the hosts' own segment.
	fmt.Fprintf(&t, "protocol direct { ipv4; interface \"%s\"; }\n", uplink)
	fmt.Fprint(&t, "protocol kernel { ipv4 { import none; export where source ~ [RTS_STATIC, RTS_BGP]; }; }\n")
	fmt.Fprint(&t, "protocol static blocks {\n\tipv4;\n")
	for _, block := range one.blocks {
		fmt.Fprintf(&t, "\troute %s blackhole;\n", block)
	}
	fmt.Fprint(&t, "}\n")
	for _, o := range b.hosts {
		if o == one {
			continue
		}
		fmt.Fprintf(&t, "protocol bgp %s {\n\tlocal %s as %d;\n\tneighbor %s as %d;\n", o.Name, one.Addr, asNumber, o.Addr, asNumber)
		fmt.Fprint(&t, "\tconnect delay time 2;\n\tconnect retry time 5;\n\terror wait time 5, 30;\n\tgraceful restart on;\n")
		fmt.Fprint(&t, "\tipv4 { import all; export where proto = \"blocks\"; next hop self; };\n}\n")
	}
	return t.String()
}

func (b *bird) write(one *birdHost) error {
	return os.WriteFile(one.file("bird.conf"), []byte(b.config(one)), 0o644)
}

// configure makes a BIRD that runs read its configuration anew.
func (b *bird) configure(ctx context.Context, one *birdHost) error {
	if err := b.write(one); err != nil {
		return err
	}
	out, err := b.ask(ctx, one, "configure")
	if err == nil && !strings.Contains(out, "Reconfigur") { // "Reconfigured", "Reconfiguration in progress"
		err = fmt.Errorf("configure BIRD of host %s: %s", one.Name, strings.TrimSpace(out))
	}
	return err
}

func (b *bird) configureOthers(ctx context.Context, h *Host) error {
	var errs []error
	for _, o := range b.hosts {
		if o.Host != h {
			errs = append(errs, b.configure(ctx, o))
		}
	}
	return errors.Join(errs...)
}

// ask runs birdc.
func (b *bird) ask(ctx context.Context, one *birdHost, args ...string) (string, error) {
	u, err := b.run(ctx, one.Host, "birdc", append([]string{"-s", one.file("bird.ctl")}, args...)...)
	return string(u.Output), err
}

// run runs a program on a host.
func (b *bird) run(ctx context.Context, h *Host, name string, args ...string) (named.Usage, error) {
	path, err := program.Find(name)
	if err != nil {
		return named.Usage{}, err
	}
	return named.Exec(ctx, h.Node, named.Command{Args: append([]string{path}, args...), Env: []string{"PATH=" + program.SearchPath()}})
}

// attachScript attaches a container. $1 is the path of its network namespace, $2 the device on the host, $3 the
// address. Its gateway is a link-local address, for which the host answers.
const attachScript = `set -e
ip -batch - <<END
link add $2 address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns "$1"
link set $2 up
route add $3/32 dev $2 scope link
END
echo 1 >/proc/sys/net/ipv4/conf/$2/proxy_arp
echo 0 >/proc/sys/net/ipv4/neigh/$2/proxy_delay
exec nsenter --net="$1" ip -batch - <<END
address add $3/32 dev eth0
link set eth0 up
route add 169.254.1.1 dev eth0 scope link
route add default via 169.254.1.1 dev eth0
END
`

func (b *bird) connect(ctx context.Context, c *Container, a netip.Addr) (named.Usage, error) {
	if a.IsValid() {
		return named.Usage{}, errors.New("a container can't have an address of another host's block")
	}
	one := b.of(c.host)
	a, err := b.address(ctx, one)
	if err != nil {
		return named.Usage{}, err
	}
	b.serial++
	at := attachment{fmt.Sprint(hostDevice, b.serial), a}
	u, err := b.run(ctx, c.host, "sh", "-c", attachScript, "sh", c.path, at.device, a.String())
	if err != nil {
		delete(one.taken, a)
		return u, err
	}
	b.attached[c], c.Addr = at, a
	return u, nil
}

func (b *bird) disconnect(ctx context.Context, c *Container) (named.Usage, error) {
	at := b.attached[c]
	u, err := b.run(ctx, c.host, "ip", "link", "delete", at.device)
	if err == nil {
		delete(b.attached, c)
		delete(b.of(c.host).taken, at.addr)
	}
	return u, err
}

func (b *bird) leave(ctx context.Context, h *Host) error {
	b.hosts = slices.DeleteFunc(b.hosts, func(o *birdHost) bool { return o.Host == h })
	return b.configureOthers(ctx, h)
}

func (b *bird) misses(context.Context, *Host, *Host) (bool, error) {
	return false, fmt.Errorf("%w: BIRD's hold time is four minutes", ErrNotApplicable)
}

func (b *bird) resolver(*Host) netip.AddrPort { return netip.AddrPort{} }
