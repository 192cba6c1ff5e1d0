// Package dhcp gets a link an IPv4 address from a DHCP server, keeps it and gives it back.
//
// # Theory of operation
//
// Acquire asks everyone for an address, takes the first offer that makes sense, asks its
// server to confirm it, and asks the neighbours whether somebody uses it nevertheless; then it
// declines and begins anew. It does so by a packet socket, since the link has no address.
// Nothing is set on the link: a Lease is data, and what is done with it is its owner's.
//
// A server may have given an address to who never hears of it: an answer is lost, or the
// process is killed. So Config.Keep is told before each request what will be asked for. What
// it was told last is enough for Release, which needs neither the address on the link nor a
// route: it can go to where the offer came from.
//
// The Lease is all that there is to be known later, so that a process started anew can extend
// or release what another acquired. Next says what is to be done and when: at T1 (half of the
// lease) Renew asks the server that gave it, by unicast, from the lease's address; at T2 (seven
// eighths) Rebind asks any; when it has expired the address comes off the link and Acquire
// begins anew, as it does when a server forbids the address. After an attempt without an
// answer half of what is left of the phase passes before the next, a minute at least (RFC
// 2131 section 4.4.5); with leases of minutes that means one attempt a phase.
//
// What passed is measured by a clock that nobody sets and that counts while the machine sleeps
// (Stamp); after a restart of the machine the wall's clock decides, and where that has gone
// back the lease counts as over.
//
// Containers on ipvlan have one Ethernet address together. They get leases of their own by the
// client identifier (IdentifierOf); a server that ignores it can't serve them. Its answers come
// by broadcast, and those that carry another client's identifier are not ours.
//
// Answers are heard by a packet socket even when the link has its address: a server's no goes
// to everyone (RFC 2131 section 4.1), which a socket at an address does not get.
//
// The machines that decide (exchange, extension) have no clock, chance or network of their own;
// run drives them over a wire.
//
// # Hostile servers
//
// What a server says is checked before anybody acts on it (read.go). An offer is refused
// without an address of one host, a subnet mask of at least eight ones and then zeros, a lease
// time of 4 s or more, or the server's identifier. Left out, and noted in the lease, are
// routers, routes and name servers that no host can be, routes after the 64th and name servers
// after the third, names with other characters than names have, MTUs below 576, T1 and T2 that
// are not in order, and a T1 within a minute unless that is half of the lease. Texts of servers
// appear quoted in errors only.
//
// # Limits
//
// IPv4 over Ethernet only; IPv6 is the kernel's to configure. One default router of those that
// are offered is used. Classful static routes (option 33), option overloading (52) and messages
// without an end option are not understood. A lease is not verified after a restart of the
// machine (INIT-REBOOT) but asked for anew, by Config.Wish. Release is sent once, and Renew
// needs the network that the lease made. If one server is silent after a request and another
// grants, what the first may have granted stays so until its time is over. Answers in several
// fragments are not heard. A machine that is restored from a snapshot believes
// that no time passed.
//
// Sources: RFC 2131, 2132, 3442, 3927, 4361, 6355, 6842; the messages are read and written by
// github.com/insomniacslk/dhcp/dhcpv4, whose own client has neither back-off nor leases that
// another process could take over.
//
// An address for eth0 of a container, on the link parent of the host, and what its keeper does
// from then on:
//
//	at := segment.Of(eth0, parent)
//	l, err := dhcp.Acquire(ctx, at, dhcp.Config{
//		Client: dhcp.Client{ID: dhcp.IdentifierOf(containerID, "eth0"), HostName: "web"},
//		Check:  announce.Fast(),
//		Keep:   keep, // writes it down; after an error: Release what it was told last
//	})
//	if err != nil {
//		return err // "acquire lease on eth0: no DHCP server answered in 10s, asked 4 times"
//	}
//	// Set l.Address, l.MTU and l.Routes; then:
//	if err := announce.Address(ctx, at, l.Address); err != nil {
//		return err
//	}
//	for {
//		now, err := dhcp.Now()
//		if err != nil {
//			return err
//		}
//		step := l.Next(now)
//		if step.In > 0 {
//			sleep(min(step.In, time.Minute))
//			continue
//		}
//		switch step.Action {
//		case dhcp.CallRenew:
//			err = dhcp.Renew(ctx, at, l)
//		case dhcp.CallRebind:
//			err = dhcp.Rebind(ctx, at, l)
//		}
//		// Keep l again. On dhcp.ErrNak and dhcp.CallAcquire: take l.Address off the link,
//		// and Acquire with Wish: l.Address.Addr().
//	}
package dhcp
