package attacher

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/container"
	"cleat/bench/named"
	"cleat/bench/spanned"
	"cleat/lab"
	"cleat/link"
)

// Config says which program attaches containers, and how.
type Config struct {
	Attacher  string // name in package catalog: an attacher, a named network, or one that spans hosts
	Link      string // "bridge" or "macvlan"; networks have their own
	Dataplane string // of cleat-overlay; "": its default
	Endpoints int    // on the bridge, the parent or the network, with the measured one; 0: 1
	Ports     int    // how many of those on a named network publish a port, beside the measured one; 0: all
	Scratch   string // a directory of the lab
	Program   string // path of cleat; "": this program
}

// Times are the results of one measurement.
type Times struct {
	Attach time.Duration // from exec until the address can be used
	Detach time.Duration // from exec to exit
	CPU    time.Duration // of attaching, user and system
}

// Host is a host on which one program attaches containers. It is used from one goroutine.
type Host struct {
	cfg      Config
	dir      string
	node     *lab.Node
	outside  *lab.Node
	driver   driver
	existing []endpoint // those that stay attached
	burst    []endpoint // those of Burst, which are attached only while it runs
	serial   int
}

// driver runs the commands of one program.
type driver interface {
	// newEndpoint returns a container without the link. The serial number is unique, and
	// from 1.
	newEndpoint(ctx context.Context, serial int) (endpoint, error)
	// attach and detach may be called for several endpoints at the same time.
	attach(ctx context.Context, e endpoint) (named.Usage, error)
	detach(ctx context.Context, e endpoint) (named.Usage, error)
	// removed removes what the program leaves behind when the last endpoint is detached.
	removed() error
	close() error
}

var (
	network = named.Subnet // of the endpoints
	gateway = netip.MustParseAddr("198.18.0.1")
)

const parent = "eth0" // the host's network card

var drivers = map[string]func(ctx context.Context, h *Host) (driver, error){
	"cleat-attach":   openCleat,
	"cleat-keeper":   openKeeper,
	"cni-plugins":    openCNI,
	"docker-connect": openDocker,

	"cleat-bridge":        openNamed,
	"cleat-routed":        openNamed,
	"docker-bridge":       openNamed,
	"netavark-bridge":     openNamed,
	"cni-bridge":          openNamed,
	"cleat-cni":           openNamed,
	"cleat-docker":        openNamed,
	"cleat-docker-direct": openNamed,
	"cleat-netavark":      openNamed,

	"cleat-overlay":   openSpanned,
	"flannel-vxlan":   openSpanned,
	"flannel-host-gw": openSpanned,
	"docker-overlay":  openSpanned,
	"bird-routes":     openSpanned,
	"weave":           openSpanned,
}

// Open makes a host and attaches all endpoints but the one to be measured. The error
// wraps a *link.Lack for what the machine lacks. On any error nothing is left behind.
func Open(ctx context.Context, cfg Config) (*Host, error) {
	if err := Check(cfg.Attacher); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(cfg.Scratch, cfg.Attacher+"-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for %s: %w", cfg.Attacher, err)
	}
	h := &Host{cfg: cfg, dir: dir}
	if err := h.open(ctx); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func (h *Host) open(ctx context.Context) (err error) {
	if h.node, err = lab.NewNode("host"); err != nil {
		return err
	}
	if h.outside, err = lab.NewNode("outside"); err != nil {
		return err
	}
	if err = lab.Connect(lab.End{Node: h.node, Name: parent}, lab.End{Node: h.outside, Name: parent}, lab.Cable{}); err != nil {
		return err
	}
	if h.driver, err = drivers[h.cfg.Attacher](ctx, h); err != nil {
		return err
	}
	for range h.cfg.Endpoints - 1 {
		e, err := h.newEndpoint(ctx)
		if err != nil {
			return err
		}
		h.existing = append(h.existing, e)
		if _, err := h.driver.attach(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) newEndpoint(ctx context.Context) (endpoint, error) {
	h.serial++
	return h.driver.newEndpoint(ctx, h.serial)
}

// Measure attaches one container and detaches it.
func (h *Host) Measure(ctx context.Context) (Times, error) {
	e, err := h.newEndpoint(ctx)
	if err != nil {
		return Times{}, err
	}
	t, err := h.measure(ctx, e)
	return t, errors.Join(err, e.close())
}

func (h *Host) measure(ctx context.Context, e endpoint) (Times, error) {
	attached, err := h.driver.attach(ctx, e)
	if err != nil {
		return Times{}, err
	}
	t := Times{Attach: attached.Took, CPU: attached.CPU}
	late, err := awaitUsable(ctx, e)
	if err != nil { // the next measurement may use the same container
		_, detachErr := h.driver.detach(ctx, e)
		return Times{}, errors.Join(err, detachErr)
	}
	if !late.IsZero() {
		t.Attach = late.Sub(attached.Began)
	}
	detached, err := h.driver.detach(ctx, e)
	if err != nil {
		return Times{}, err
	}
	t.Detach = detached.Took
	stays, err := usable(e)
	if err != nil {
		return Times{}, err
	}
	if stays {
		return Times{}, fmt.Errorf("%s left the address behind when it detached the container", h.cfg.Attacher)
	}
	if h.cfg.Endpoints <= 1 {
		err = h.driver.removed()
	}
	return t, err
}

// Close ends the program and releases the containers and the host.
func (h *Host) Close() error {
	var errs []error
	if h.driver != nil {
		errs = append(errs, h.driver.close())
	}
	for _, e := range slices.Concat(h.existing, h.burst) {
		errs = append(errs, e.close())
	}
	for _, n := range []*lab.Node{h.node, h.outside} {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(h.dir))...)
}

// address returns the address of an endpoint for programs that don't choose it: from
// 198.18.1.0 on, without the last octets 0 and 255.
func address(serial int) netip.Prefix {
	const octets = 254
	a := netip.AddrFrom4([4]byte{198, 18, byte(1 + serial/octets%octets), byte(1 + serial%octets)})
	return netip.PrefixFrom(a, network.Bits())
}

// Check reports whether this lab can run the named attacher. The error is a *link.Lack
// for the first thing that is missing.
func Check(name string) error {
	if drivers[name] == nil {
		return fmt.Errorf("unknown attacher %q", name)
	}
	switch e, _ := catalog.Lookup(name); {
	case e.Role == catalog.Named:
		return named.Check(name)
	case e.Cluster:
		return spanned.Check(name)
	}
	if f, inside := lab.Inside(); inside && f == lab.User {
		return &link.Lack{What: name, Reason: "attaching containers needs a lab made by root", Remedy: "run the command with sudo, and not with --lab user"}
	}
	var err error
	switch name {
	case "cni-plugins":
		_, err = pluginDir()
	case "docker-connect":
		var lack *link.Lack
		if err = container.Check("docker"); errors.As(err, &lack) {
			err = &link.Lack{What: name, Reason: lack.Reason, Remedy: lack.Remedy}
		}
	}
	for _, kind := range []string{"veth", "bridge", "macvlan"} {
		if err == nil {
			err = link.Probe(kind)
		}
	}
	return err
}
