package attacher

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"cleat/lab"
	"cleat/link"
)

// Config says what attaches, and what.
type Config struct {
	Attacher  string // a name of package catalog
	Link      string // "bridge" or "macvlan"
	Endpoints int    // how many the bridge or the parent has when the measured one is there; 0: 1
	Scratch   string // a directory of the lab
	Program   string // path of cleat; "": this program
}

// Times are those of one measurement.
type Times struct {
	Attach time.Duration // from exec until the address can be used
	Detach time.Duration // from exec to exit
	CPU    time.Duration // user and system, of attaching
}

// Host is a host on which one program attaches. It is used from one goroutine.
type Host struct {
	cfg     Config
	dir     string
	host    *lab.Node
	outside *lab.Node
	tool    tool
	before  []guest // the endpoints that stay
	serial  int
}

// tool is a program that attaches.
type tool interface {
	// guest is a container without the link; serial is another number for each.
	guest(serial int) (guest, error)
	attach(g guest) command
	detach(g guest) command
	// detached is called after that, for what the program leaves.
	detached() error
	close() error
}

// How a site is laid out.
var (
	network = netip.MustParsePrefix("198.18.0.0/16") // of the endpoints
	gateway = netip.MustParseAddr("198.18.0.1")
)

const parent = "eth0" // the host's network card

// tools open the programs.
var tools = map[string]func(ctx context.Context, s *Host) (tool, error){
	"cleat-attach":   openCleat,
	"cleat-keeper":   openKeeper,
	"cni-plugins":    openCNI,
	"docker-connect": openDocker,
}

// Open makes a host, and on it all endpoints but the one to be measured. What the
// machine lacks is a *link.Lack; on any error nothing stays behind.
func Open(ctx context.Context, cfg Config) (*Host, error) {
	if err := Check(cfg.Attacher); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(cfg.Scratch, cfg.Attacher+"-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for %s: %w", cfg.Attacher, err)
	}
	s := &Host{cfg: cfg, dir: dir}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Host) open(ctx context.Context) (err error) {
	if s.host, err = lab.NewNode("host"); err != nil {
		return err
	}
	if s.outside, err = lab.NewNode("outside"); err != nil {
		return err
	}
	if err = lab.Connect(lab.End{Node: s.host, Name: parent}, lab.End{Node: s.outside, Name: parent}, lab.Cable{}); err != nil {
		return err
	}
	if s.tool, err = tools[s.cfg.Attacher](ctx, s); err != nil {
		return err
	}
	for range s.cfg.Endpoints - 1 {
		g, err := s.next()
		if err != nil {
			return err
		}
		s.before = append(s.before, g)
		if _, err := s.run(ctx, s.tool.attach(g)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Host) next() (guest, error) {
	s.serial++
	return s.tool.guest(s.serial)
}

// Measure attaches one container and detaches it.
func (s *Host) Measure(ctx context.Context) (Times, error) {
	g, err := s.next()
	if err != nil {
		return Times{}, err
	}
	t, err := s.measure(ctx, g)
	return t, errors.Join(err, g.close())
}

func (s *Host) measure(ctx context.Context, g guest) (Times, error) {
	attached, err := s.run(ctx, s.tool.attach(g))
	if err != nil {
		return Times{}, err
	}
	t := Times{Attach: attached.took, CPU: attached.cpu}
	late, err := awaitUsable(ctx, g)
	if err != nil { // one container may take all turns: the next finds it as it was
		_, back := s.run(ctx, s.tool.detach(g))
		return Times{}, errors.Join(err, back)
	}
	if !late.IsZero() {
		t.Attach = late.Sub(attached.began)
	}
	detached, err := s.run(ctx, s.tool.detach(g))
	if err != nil {
		return Times{}, err
	}
	t.Detach = detached.took
	there, err := usable(g)
	if err != nil {
		return Times{}, err
	}
	if there {
		return Times{}, fmt.Errorf("%s left the address when it detached", s.cfg.Attacher)
	}
	if s.cfg.Endpoints <= 1 {
		err = s.tool.detached()
	}
	return t, err
}

// Close lets everything go.
func (s *Host) Close() error {
	var errs []error
	if s.tool != nil {
		errs = append(errs, s.tool.close())
	}
	for _, g := range s.before {
		errs = append(errs, g.close())
	}
	for _, n := range []*lab.Node{s.host, s.outside} {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// address is the one that an endpoint is given where that is not the program's to
// choose: from 198.18.1.0 on, without the last octets 0 and 255.
func address(serial int) netip.Prefix {
	const octets = 254
	a := netip.AddrFrom4([4]byte{198, 18, byte(1 + serial/octets%octets), byte(1 + serial%octets)})
	return netip.PrefixFrom(a, network.Bits())
}

// Check is nil when this lab can have the attacher of that name, else the
// *link.Lack of the first thing that is missing.
func Check(name string) error {
	if f, inside := lab.Inside(); inside && f == lab.User {
		return &link.Lack{What: name, Reason: "what attaches containers needs a lab that is made by root", Remedy: "run the command with sudo, and not with --lab user"}
	}
	if name == "cni-plugins" {
		if _, err := pluginDir(); err != nil {
			return err
		}
	}
	if name == "docker-connect" {
		if err := checkDocker(); err != nil {
			return err
		}
	}
	for _, kind := range []string{"veth", "bridge", "macvlan"} {
		if err := link.Probe(kind); err != nil {
			return err
		}
	}
	return nil
}
