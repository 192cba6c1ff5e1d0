package multipath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"cleat/fastpath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Path is a way to the other end, by which packets are sent.
type Path struct {
	ID            int // below MaxPaths
	Device        int // index of the device that leads there
	Local, Remote netip.AddrPort
	Share         int // bytes that are sent in a row
}

// MaxPaths is the number of paths that a tunnel may have.
const MaxPaths = 64

// Remote is where packets are received from: an address of the other end, and the UDP port here.
type Remote struct {
	From netip.AddrPort
	Port uint16
}

// Tunnel is the programs and maps of one end of a tunnel. Its methods are called by one goroutine at a time, in the network
// namespace of the tunnel's paths.
type Tunnel struct {
	objects multipathObjects
	device  int
	egress  link.Link
	ingress map[int]link.Link // by index of the device
	key     uint32            // of packets that are received, as in their header; 0: none
	sources []netip.Prefix    // that packets may come from
	remotes []Remote
}

// New loads the programs, and attaches one to a tunnel's device. All its packets still go to the device. If that can't be
// had here, the error is a *fastpath.UnsupportedError.
func New(device int) (*Tunnel, error) {
	if err := fastpath.MayLoad(); err != nil {
		return nil, err
	}
	t := &Tunnel{device: device, ingress: map[int]link.Link{}}
	if err := loadMultipathObjects(&t.objects, nil); err != nil {
		return nil, &fastpath.UnsupportedError{Reason: "the kernel refuses the programs", Err: err}
	}
	var err error
	t.egress, err = link.AttachTCX(link.TCXOptions{Interface: device, Program: t.objects.ToPaths, Attach: ebpf.AttachTCXEgress})
	switch {
	case errors.Is(err, ebpf.ErrNotSupported):
		return nil, errors.Join(&fastpath.UnsupportedError{Reason: "it needs Linux 6.6 or newer"}, t.objects.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("attach a program to device %d: %w", device, err), t.objects.Close())
	}
	return t, nil
}

// Receive has packets with a key that arrive by some devices, from some addresses, come out of the tunnel's device. Counts
// begin anew with another key.
func (t *Tunnel) Receive(key uint32, devices []int, remotes []Remote) error {
	var errs []error
	for _, r := range t.remotes {
		if !slices.Contains(remotes, r) {
			errs = append(errs, t.objects.RemotesMap.Delete(remote(r)))
		}
	}
	for _, r := range remotes {
		errs = append(errs, t.objects.RemotesMap.Put(remote(r), uint8(1)))
	}
	t.remotes = slices.Clone(remotes)
	if wireKey := bigEndian32(key); wireKey != t.key {
		if t.key != 0 {
			errs = append(errs, t.objects.ReceivedMap.Delete(&t.key))
		}
		errs = append(errs, t.objects.ReceivedMap.Put(&wireKey, &multipathReceived{Device: uint32(t.device)}))
		t.key = wireKey
	}
	unused := maps.Clone(t.ingress)
	for _, d := range devices {
		delete(unused, d)
		if t.ingress[d] != nil {
			continue
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: d, Program: t.objects.FromPaths, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			errs = append(errs, fmt.Errorf("attach a program to device %d: %w", d, err))
			continue
		}
		t.ingress[d] = l
	}
	for d, l := range unused {
		errs = append(errs, l.Close())
		delete(t.ingress, d)
	}
	return errors.Join(errs...)
}

// Send has the packets that leave by the tunnel's device sent by paths, with a key. Without paths they go to the device.
func (t *Tunnel) Send(key uint32, paths []Path) error {
	s := multipathSettings{Key: bigEndian32(key), Device: uint32(t.device)}
	if err := t.objects.SettingsMap.Put(uint32(0), &s); err != nil {
		return err
	}
	for i, p := range paths {
		v := multipathPath{
			Source: address(p.Local.Addr()), Destination: address(p.Remote.Addr()),
			SourcePort: bigEndian(p.Local.Port()), DestinationPort: bigEndian(p.Remote.Port()),
			Device: uint32(p.Device), Share: uint32(p.Share), Id: uint32(p.ID),
		}
		if err := t.objects.PathsMap.Put(uint32(i), &v); err != nil {
			return err
		}
	}
	s.Paths = uint32(len(paths))
	return t.objects.SettingsMap.Put(uint32(0), &s)
}

// SetSources sets the networks that received packets may come from. At first there are none.
func (t *Tunnel) SetSources(all []netip.Prefix) error {
	var errs []error
	for _, p := range t.sources {
		if !slices.Contains(all, p) {
			errs = append(errs, t.objects.SourcesMap.Delete(network(p)))
		}
	}
	for _, p := range all {
		errs = append(errs, t.objects.SourcesMap.Put(network(p), uint8(1)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("set the networks that packets may come from: %w", err)
	}
	t.sources = slices.Clone(all)
	return nil
}

func remote(r Remote) *multipathRemote {
	return &multipathRemote{Address: address(r.From.Addr()), Port: bigEndian(r.From.Port()), LocalPort: bigEndian(r.Port)}
}

func network(p netip.Prefix) *multipathNetwork {
	n := &multipathNetwork{Bits: uint32(p.Bits()), Address: p.Addr().As16()}
	if p.Addr().Is4() {
		n.Bits += 96
	}
	return n
}

// Count is packets, and their bytes without outer headers.
type Count struct{ Packets, Bytes uint64 }

// Sent returns what has been sent, by id of a path.
func (t *Tunnel) Sent() (all [MaxPaths]Count, err error) {
	var s multipathSent
	if err := t.objects.SentMap.Lookup(uint32(0), &s); err != nil {
		return all, fmt.Errorf("read what has been sent: %w", err)
	}
	for i, p := range s.Paths {
		all[i] = Count{p.Packets, p.Bytes}
	}
	return all, nil
}

// Received is what has come by a path of the other end.
type Received struct {
	Count
	Lost, Late uint64 // bytes that were missing when later ones came, and that came after later ones
}

// Received returns what has come, by the other end's paths.
func (t *Tunnel) Received() (all [MaxPaths]Received, err error) {
	var r multipathReceived
	if err := t.objects.ReceivedMap.Lookup(&t.key, &r); err != nil {
		return all, fmt.Errorf("read what has been received: %w", err)
	}
	for i, p := range r.Paths {
		all[i] = Received{Count{p.Packets, p.Bytes}, p.Lost, p.Late}
	}
	return all, nil
}

// Close removes the programs.
func (t *Tunnel) Close() error {
	errs := []error{t.egress.Close()}
	for _, l := range t.ingress {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, t.objects.Close())...)
}

func address(a netip.Addr) uint32 {
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

func bigEndian(port uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
}

func bigEndian32(v uint32) uint32 {
	return binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, v))
}
