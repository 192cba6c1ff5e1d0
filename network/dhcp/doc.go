// Package dhcp gets an IPv4 lease for a link from a DHCP server, renews it and releases it.
//
// # Theory of operation
//
// Acquire broadcasts a request, takes the first acceptable offer, asks its server to confirm it,
// and checks that no neighbour uses the address. If one does, it declines and begins again. It
// uses a packet socket, since the link has no address. It does not configure the link: a Lease
// is data for the caller.
//
// A server may have granted an address without the client ever knowing: an answer is lost, or
// the process is killed. So Config.Save is called before each request with what will be
// requested. That is enough for Release, which needs neither the address on the link nor a
// route, because it can send to where the offer came from.
//
// The Lease contains everything that another process needs to renew or release it. Next says
// what to do and when. At T1 (half of the lease) Renew asks the server that granted it, by
// unicast, from the lease's address. At T2 (seven eighths) Rebind asks any server. When the
// lease has expired, or a server forbids the address, the address must be removed from the link
// and Acquire called again. After an attempt without an answer, the next one follows after half
// of the rest of the phase, at least a minute (RFC 2131 section 4.4.5); with leases of minutes
// that means one attempt per phase.
//
// Time is measured by a clock that nobody sets and that counts while the machine sleeps (Stamp).
// After a restart of the machine the wall clock decides; if that has gone back, the lease counts
// as expired.
//
// Containers on ipvlan share one Ethernet address. They get separate leases by their client
// identifiers (IdentifierOf); a server that ignores the identifier can't serve them. Answers are
// broadcast, and those with another client's identifier are ignored.
//
// Answers are received by a packet socket even if the link has its address, because a server
// broadcasts a NAK (RFC 2131 section 4.1), which a socket with an address does not receive.
//
// The state machines (exchange, renewal) have no clock, random numbers or network of their own.
// A driver runs them on a wire.
//
// # Hostile servers
//
// What a server sends is validated before it is used (read.go). An offer is rejected unless it
// has a unicast address, a subnet mask of at least eight ones followed by zeros, a lease time of
// at least 4 s, and a server identifier. Ignored, and noted in the lease, are routers, routes
// and name servers that can't be hosts, routes after the 64th and name servers after the third,
// names with characters that names don't have, MTUs below 576, T1 and T2 that are not in order,
// and a T1 within a minute unless that is half of the lease. Texts of servers only appear quoted
// in errors.
//
// # Limits
//
// Only IPv4 over Ethernet is supported; the kernel configures IPv6. Of several default routers
// one is used. Classful static routes (option 33), option overloading (52) and messages without
// an end option are not supported. After a restart of the machine a lease is not verified
// (INIT-REBOOT); it can be requested again with Config.Requested. Release sends one message, and
// Renew needs the route of the lease's network. If one server does not answer a request and
// another grants one, what the first may have granted remains until it expires. Fragmented
// answers are not received. A machine that is restored from a snapshot does not notice that
// time has passed.
//
// Sources: RFC 2131, 2132, 3442, 3927, 4361, 6355, 6842. Messages are encoded and decoded by
// github.com/insomniacslk/dhcp/dhcpv4, whose own client has neither a back-off nor leases that
// another process can take over.
//
// An address for eth0 of a container, and what its keeper does:
//
//	at := segment.Link{NS: eth0.NS(), Index: eth0.Index()}
//	l, err := dhcp.Acquire(ctx, at, dhcp.Config{
//		Client: dhcp.Client{ID: dhcp.IdentifierOf(containerID, "eth0"), HostName: "web"},
//		Save:   save, // after an error, Release what it was last called with
//	})
//	if err != nil {
//		return err // "acquire lease on eth0: no DHCP server answered within 10s (messages sent: 4)"
//	}
//	// Set l.Address, l.MTU and l.Routes; then:
//	if err := announce.Address(ctx, at, l.Address.Addr()); err != nil {
//		return err
//	}
//	for {
//		now, err := dhcp.Now()
//		if err != nil {
//			return err
//		}
//		step := l.Next(now)
//		if step.Delay > 0 {
//			sleep(min(step.Delay, time.Minute))
//			continue
//		}
//		switch step.Action {
//		case dhcp.CallRenew:
//			err = dhcp.Renew(ctx, at, l)
//		case dhcp.CallRebind:
//			err = dhcp.Rebind(ctx, at, l)
//		}
//		// Save l. On dhcp.ErrNak and dhcp.CallAcquire: remove l.Address from the link,
//		// and call Acquire with Requested: l.Address.Addr().
//	}
package dhcp
