package spanned

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"

	"golang.org/x/sync/errgroup"
)

// Events that a Bed measures.
const (
	Join     = "join"     // a host joins, until a container on it and those of all other hosts reach each other
	Endpoint = "endpoint" // a container is connected, until it is reached from all other hosts
	Name     = "name"     // the same, until all other hosts find its name
	Death    = "death"    // a host is cut off, until all others say so
	Healing  = "healing"  // it is back, until it and all others reach each other's containers, new ones included
	Move     = "move"     // a container is connected on another host with its address, until it is reached there from all hosts
	Address  = "address"  // a host's address changes, until its container and those of all others reach each other
)

// Events returns all of them.
func Events() []string { return []string{Join, Endpoint, Name, Death, Healing, Move, Address} }

// Bed is a cluster on a switch, with a container on each host that answers and asks.
type Bed struct {
	*Cluster
	sw     *lab.Switch
	ports  map[*Host]string // of the switch
	made   int              // hosts so far
	asking map[*Host]*Container
}

// OpenBed makes a cluster of hosts, of which there are at least three.
func OpenBed(ctx context.Context, cfg Config, hosts int) (*Bed, error) {
	c, err := Open(cfg)
	if err != nil {
		return nil, err
	}
	b := &Bed{Cluster: c, ports: map[*Host]string{}, asking: map[*Host]*Container{}}
	if b.sw, err = lab.NewSwitch("switch", 0); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	for range hosts {
		h, err := b.addHost(ctx)
		if err == nil {
			err = b.admit(ctx, h)
		}
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
	if err := b.allReach(ctx); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// hostAddr returns the address of host number i, from 1.
func hostAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 19, byte(i / 250), byte(i%250 + 1)})
}

const hostBits = 16 // of the hosts' segment

// newNode makes a node on the switch.
func (b *Bed) newNode() (n *lab.Node, name, port string, addr netip.Addr, err error) {
	b.made++
	name, addr = fmt.Sprintf("node%d", b.made), hostAddr(b.made)
	if n, err = lab.NewNode(name); err != nil {
		return nil, "", "", addr, err
	}
	if port, err = b.sw.Plug(lab.End{Node: n, Name: "eth0"}, 0); err == nil {
		err = n.Address("eth0", netip.PrefixFrom(addr, hostBits))
	}
	if err == nil {
		err = link.SetBridgeNetfilter(n.NS, false)
		if errors.As(err, new(*link.Lack)) {
			err = nil
		}
	}
	return n, name, port, addr, err
}

// addHost makes a host that has not joined yet, with its container that asks, which is not on the network yet. On an
// error it may be one of the cluster's.
func (b *Bed) addHost(ctx context.Context) (*Host, error) {
	n, name, port, addr, err := b.newNode()
	if err != nil {
		return nil, err
	}
	h, err := b.newHost(ctx, n, name, addr)
	if err != nil {
		return nil, err
	}
	b.ports[h] = port
	b.asking[h], err = h.answering(ctx, "ask-"+h.Name)
	return h, err
}

// admit makes a host join, and connects its container.
func (b *Bed) admit(ctx context.Context, h *Host) error {
	err := h.join(ctx)
	if err == nil {
		_, err = b.asking[h].Connect(ctx)
	}
	return err
}

// answerPort is where containers answer with their names.
const answerPort = 7

// answering makes a container that answers until it is closed, and is not on the network yet.
func (h *Host) answering(ctx context.Context, name string) (*Container, error) {
	c, err := h.Create(ctx, name)
	if err != nil {
		return nil, err
	}
	l, err := listenIn(ctx, c.Node.NS)
	if err != nil {
		return nil, err
	}
	c.listener = l
	go func() { // until the listener is closed
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, name)
			conn.Close()
		}
	}()
	return c, nil
}

func listenIn(ctx context.Context, ns *netns.NS) (l net.Listener, err error) {
	err = ns.Do(func() error {
		l, err = (&net.ListenConfig{}).Listen(ctx, "tcp4", fmt.Sprintf(":%d", answerPort))
		return err
	})
	return l, err
}

// Times of one attempt to reach a container.
const (
	dialWithin = 100 * time.Millisecond // a lost first packet would cost TCP's second
	readWithin = 2 * time.Second
	pollEvery  = 2 * time.Millisecond
	giveUp     = 60 * time.Second
)

// reaches returns an error unless a container reaches another one.
func reaches(from, to *Container) error {
	var answer []byte
	err := from.Node.NS.Do(func() error {
		c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(to.Addr, answerPort).String(), dialWithin)
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(readWithin))
		answer, err = io.ReadAll(io.LimitReader(c, 64))
		return err
	})
	if err == nil && string(answer) != to.Name {
		err = fmt.Errorf("%q answers", answer)
	}
	if err != nil {
		return fmt.Errorf("container %s does not reach %s at %s: %w", from.Name, to.Name, to.Addr, err)
	}
	return nil
}

// finds returns an error unless a container finds the name of another one.
func (b *Bed) finds(ctx context.Context, from, to *Container) error {
	r := net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (c net.Conn, err error) {
		err = from.Node.NS.Do(func() error {
			c, err = net.DialTimeout("udp4", b.driver.resolver(from.host).String(), dialWithin)
			return err
		})
		return c, err
	}}
	ctx, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	found, err := r.LookupHost(ctx, to.Name)
	if err == nil && !slices.Contains(found, to.Addr.String()) {
		err = fmt.Errorf("found %s", strings.Join(found, ", "))
	}
	if err != nil {
		return fmt.Errorf("container %s does not find %s: %w", from.Name, to.Name, err)
	}
	return nil
}

// await calls f until it returns nil, for a minute at most.
func await(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, giveUp)
	defer cancel()
	t := time.NewTicker(pollEvery)
	defer t.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("gave up after %s: %w", giveUp, err)
		case <-t.C:
		}
	}
}

// others returns the hosts of the bed without one.
func (b *Bed) others(one *Host) []*Host {
	return slices.DeleteFunc(slices.Clone(b.hosts), func(h *Host) bool { return h == one })
}

// atOnce calls f for all hosts at once, each until it returns nil.
func atOnce(ctx context.Context, hosts []*Host, f func(*Host) error) error {
	var all errgroup.Group
	for _, h := range hosts {
		all.Go(func() error { return await(ctx, func() error { return f(h) }) })
	}
	return all.Wait()
}

// reachable waits until containers of all other hosts reach one of a host.
func (b *Bed) reachable(ctx context.Context, c *Container) error {
	return atOnce(ctx, b.others(c.host), func(h *Host) error { return reaches(b.asking[h], c) })
}

// joined waits until a host's container and those of all others reach each other.
func (b *Bed) joined(ctx context.Context, h *Host) error {
	if err := b.reachable(ctx, b.asking[h]); err != nil {
		return err
	}
	return atOnce(ctx, b.others(h), func(o *Host) error { return reaches(b.asking[h], b.asking[o]) })
}

// allReach waits until the containers of all hosts reach each other.
func (b *Bed) allReach(ctx context.Context) error {
	for _, h := range b.hosts {
		if err := b.joined(ctx, h); err != nil {
			return err
		}
	}
	return nil
}

// Close ends all processes and releases the nodes.
func (b *Bed) Close() error {
	errs := []error{b.Cluster.Close()}
	for _, h := range b.hosts {
		errs = append(errs, h.Node.Close())
	}
	if b.sw != nil {
		errs = append(errs, b.sw.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(b.cfg.Dir))...)
}
