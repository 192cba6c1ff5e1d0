package usernet

import (
	"net/netip"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// maxErrorReports bounds how many error reports are read at a time.
const maxErrorReports = 64

// readErrors reads the socket's error queue and passes the errors to the guest. It
// returns how many there were, and the MTU that the host's kernel has reported last for a
// datagram it did not send.
func (k *udpSocket) readErrors() (mtu, count int) {
	var r sys.ErrorReport
	for count < maxErrorReports && k.t.errors.Next(k.fd, &r) {
		count++
		if r.Origin == sys.OriginLocal {
			if r.Errno == unix.EMSGSIZE {
				mtu = int(r.Info)
			}
			continue
		}
		from := path{peer: r.To}
		if k.forward != nil {
			from.local = r.Local
		}
		if f := k.flows[from]; f != nil && f.state == udpOpen {
			f.report(&r)
		}
	}
	return mtu, count
}

// report passes on an ICMP error that the host has received for the flow.
func (f *udpFlow) report(r *sys.ErrorReport) {
	e := packet.ICMPError{Type: r.Type, Code: r.Code}
	if guest := f.guest.Addr(); guest.Is4() != (r.Origin == sys.OriginICMP) {
		e = packet.NewICMPError(icmpReason(r.Errno), guest.Is4(), int(r.Info))
		if r.Errno == unix.EMSGSIZE {
			e = packet.NewICMPError(packet.ErrorTooBig, guest.Is4(), int(r.Info))
		}
	} else if r.Errno == unix.EMSGSIZE {
		e.Rest = r.Info
	}
	f.t.s.icmp.send(&e, f.errorSource(r.Offender), f.guestPacket(r.Data))
}

// errorSource returns the address that the guest sees as the sender of an error.
func (f *udpFlow) errorSource(a netip.Addr) netip.Addr {
	switch {
	case a == f.host.Addr().WithZone(""):
		return f.peer.Addr()
	case f.direct && a.IsValid() && a.Is4() == f.guest.Addr().Is4() && !a.IsLoopback():
		return a
	}
	return f.t.s.gatewayFor(f.guest.Addr())
}

// guestPacket returns the packet that an error is about as the guest wrote it, as far as
// it is known.
func (f *udpFlow) guestPacket(data []byte) []byte {
	b := f.t.scratch[:packet.IPv6Bytes+packet.UDPBytes+len(data)]
	if f.proto == packet.UDP {
		n := packet.PutIP(b, f.guest.Addr(), f.peer.Addr(), f.proto, 0, packet.UDPBytes+len(data))
		n += packet.PutUDP(b[n:], f.guest.Port(), f.peer.Port(), len(data))
		return b[:n+copy(b[n:], data)]
	}
	n := packet.PutIP(b, f.guest.Addr(), f.peer.Addr(), f.proto, 0, len(data))
	m := b[n : n+copy(b[n:], data)]
	if len(m) >= packet.ICMPBytes {
		m[4], m[5] = byte(f.guest.Port()>>8), byte(f.guest.Port())
	}
	return b[:n+len(m)]
}
