package pipework

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"cleat/compat/journal"
	"cleat/internal/columns"
	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
)

const name = "pipework"

// Host provides what the program needs from its environment.
type Host struct {
	Open func() (attach.Config, error) // opens the store and the search for containers
	Keep func(*attach.Store) error     // starts a keeper that renews leases
}

// Main runs the program. args are the arguments after its name, and version is printed by
// --version. It returns the exit code: the script's 1 for errors, and 2 for what the script
// supports and this program does not. If ctx ends first, it prints nothing.
func Main(ctx context.Context, args []string, version string, host Host) int {
	o, err := Parse(args)
	switch {
	case err != nil:
		return complain(err)
	case o.Help:
		printHelp(os.Stdout)
		return 0
	case o.Version:
		fmt.Printf("%s (cleat) %s\n", name, version)
		return 0
	}
	err = o.do(ctx, host)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		return 1
	}
	return complain(explain(err, o))
}

func (o Options) do(ctx context.Context, host Host) error {
	if o.Wait {
		here, err := netns.Current()
		if err != nil {
			return err
		}
		defer here.Close()
		return waitUp(ctx, here, o.Link)
	}
	cfg, err := host.Open()
	if err != nil {
		return err
	}
	if o.Tool != nil {
		return become(ctx, cfg, o.Guest, o.Tool)
	}
	return o.attach(ctx, cfg, host)
}

func (o Options) attach(ctx context.Context, cfg attach.Config, host Host) error {
	here, err := netns.Current()
	if err != nil {
		return err
	}
	defer here.Close()
	devices, err := hostDevices(here)
	if err != nil {
		return err
	}
	p, err := o.Plan(devices)
	if err != nil {
		return err
	}
	lower, err := raise(here, p.Raise)
	if err != nil {
		return err
	}
	got, err := attach.Attach(ctx, cfg, o.Guest, p.Spec)
	if err != nil {
		return errors.Join(err, lower())
	}
	if p.Raise != "" {
		p.Notes = append(p.Notes, p.Raise+" was down; it is up now")
	}
	if got.Attachment.NeedsKeeper() {
		if err := host.Keep(cfg.Store); err != nil {
			p.note(fmt.Sprintf("its lease is not renewed (`cleat keep` would do that): %v", err))
		}
	}
	for _, n := range append(p.Notes, got.Notes...) {
		fmt.Fprintf(os.Stderr, "%s: note: %s\n", name, columns.Plain(n))
	}
	return nil
}

// raise sets a device of the host up, and returns a function that sets it down again. An
// empty name is a no-op.
func raise(here *netns.NS, device string) (lower func() error, err error) {
	if device == "" {
		return func() error { return nil }, nil
	}
	l, err := link.Find(here, device)
	if err != nil {
		return nil, err
	}
	return l.Down, l.Up()
}

func complain(err error) int {
	fmt.Fprint(os.Stderr, journal.Describe(name, err))
	var e *Error
	if errors.As(err, &e) && e.lacking {
		return 2
	}
	return 1
}

func printHelp(w io.Writer) {
	fmt.Fprint(w, `Usage: pipework HOSTIF [OPTION]... GUEST ADDRESS/LENGTH[@GATEWAY] [MAC][@VLAN]
       pipework HOSTIF [OPTION]... GUEST 0/0 [MAC][@VLAN]
       pipework HOSTIF [OPTION]... GUEST dhcp|CLIENT [MAC][@VLAN]
       pipework route|rule|tc GUEST ARG...
       pipework --wait [-i LINK]

Puts a running container on a bridge or a network card. This is cleat in place of
pipework: `+"`cleat ls`"+` lists what is attached, and `+"`cleat detach`"+` undoes it.

  HOSTIF   a bridge, created if missing and named br... or ovs...; any other
           device, shared by macvlan; mac:ADDRESS for the device with that
           address; dummy for a dummy device
  GUEST    a container, a process id, a name from `+"`ip netns`"+`, or a path
  CLIENT   a DHCP client's name: dhclient, udhcpc or dhcpcd
  GATEWAY  default gateway; replaces the container's default route
  MAC      an Ethernet address, or U:WORD for one derived from WORD

  -i LINK         the link's name in the container (default: eth1)
  -l NAME         the name of its other end, on a bridge
  -a inet|inet6   the family that the address must have
  --ipvlan        share the device by ipvlan in mode l3
  --direct-phys   move the device itself, or a VLAN of it
  -H NAME         the host name for DHCP (default: the container's)
  --wait          wait until LINK is up in this namespace
  --help, --version

dhcp and CLIENT all use cleat's own DHCP client. The lease is renewed while the
container is attached, with or without -f after the name. route, rule and tc run
ip(8) and tc(8) in the container's network.

  pipework br1 web 192.0.2.10/24@192.0.2.1
  pipework eth0 web dhcp
  pipework eth0 -i eth2 web 192.0.2.10/24 U:web@10
  pipework route web add 198.51.100.0/24 via 192.0.2.254
`)
}
