package fastpath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
)

// Settings is how packets of containers travel between hosts, beside as they are.
type Settings struct {
	VNI    int    // of VXLAN
	Port   uint16 // of VXLAN
	Device int    // index of the VXLAN device; 0: none
	// Peers are the addresses of hosts that send packets in VXLAN. Those of others always go the kernel's way.
	Peers []netip.Addr
}

func (s Settings) equal(o Settings) bool {
	return s.VNI == o.VNI && s.Port == o.Port && s.Device == o.Device && slices.Equal(s.Peers, o.Peers)
}

func (p *Path) set(s Settings) error {
	v := flowSettings{Device: uint32(s.Device)}
	v.Vni = binary.NativeEndian.Uint32([]byte{byte(s.VNI >> 16), byte(s.VNI >> 8), byte(s.VNI), 0})
	v.Port = binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, s.Port))
	for of, into := range map[string]*uint32{"established": &v.Established, "fin_wait": &v.Ended, "close": &v.Aborted} {
		d, err := rememberedFor(of)
		if err != nil {
			return err
		}
		*into = uint32(min(d.Milliseconds(), math.MaxUint32))
	}
	if err := p.objects.SettingsMap.Put(uint32(0), &v); err != nil {
		return fmt.Errorf("set the network of VXLAN: %w", err)
	}
	if err := p.setPeers(s.Peers); err != nil {
		return err
	}
	p.settings = s
	return nil
}

// setPeers makes the map of hosts as wanted.
func (p *Path) setPeers(want []netip.Addr) error {
	var errs []error
	for _, a := range p.settings.Peers {
		if a.Is4() && !slices.Contains(want, a) {
			if err := p.objects.Peers.Delete(a.As4()); !errors.Is(err, ebpf.ErrKeyNotExist) {
				errs = append(errs, err)
			}
		}
	}
	for _, a := range want {
		if a.Is4() {
			errs = append(errs, p.objects.Peers.Put(a.As4(), uint8(1)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("set the addresses of hosts: %w", err)
	}
	return nil
}

// rememberedFor returns how long connection tracking remembers connections of TCP in a state.
func rememberedFor(state string) (time.Duration, error) {
	file := "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_" + state
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("read a setting of connection tracking: %w", err)
	}
	seconds, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return time.Duration(seconds) * time.Second, nil
}
