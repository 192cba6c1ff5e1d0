package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"cleat/link"
)

// SwitchOnIPv6 has the link in the container speak IPv6 where new links don't:
// Docker switches it off in the network of every container whose own networks have
// none. Of the container's other links it changes nothing.
type SwitchOnIPv6 struct {
	Link string `json:"link"`
}

func (s SwitchOnIPv6) String() string { return fmt.Sprintf("switch IPv6 on for %s", s.Link) }

// do needs no undoing: a link's settings go with it, from the namespace, too.
func (s SwitchOnIPv6) do(r *run) error {
	return r.cont.ns.Do(func() error { return os.WriteFile(disablesIPv6(s.Link), []byte("0"), 0) })
}

// disablesIPv6 is the setting by which a link speaks no IPv6; "default" is what new
// links get.
func disablesIPv6(name string) string {
	return filepath.Join("/proc/sys/net/ipv6/conf", name, "disable_ipv6")
}

// setIPv6 sets what a link does about IPv6, where the kernel knows of that.
func setIPv6(s *side, name, what, value string) error {
	err := s.ns.Do(func() error {
		return os.WriteFile(filepath.Join(filepath.Dir(disablesIPv6(name)), what), []byte(value), 0)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ipv6 sees to it that the link can have IPv6 addresses if it is to.
func (p *planner) ipv6() error {
	if !slices.ContainsFunc(p.want.Addresses, func(ip netip.Prefix) bool { return ip.Addr().Is6() }) {
		return nil
	}
	off := false
	err := p.cont.ns.Do(func() (err error) {
		off, err = isOne(disablesIPv6("default"))
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return &link.Lack{What: "IPv6", Reason: "the kernel was started without it (ipv6.disable=1)", Remedy: "leave the IPv6 addresses out"}
	}
	if off {
		p.note("IPv6 is switched off in the container: it is on for %s alone", p.want.Name)
		p.add(SwitchOnIPv6{Link: p.want.Name})
	}
	return err
}
