package traffic

import (
	"context"
	"fmt"
	"sync"
	"time"
)

func (c *client) runUDP(ctx context.Context) error {
	flows, rtt, err := c.greet(ctx, greetPatience)
	if err != nil {
		return err
	}
	defer closeFlows(flows)
	c.result.OfferedBitsPerSecond = c.cfg.BitsPerSecond
	switch {
	case c.cfg.Search:
		return c.searchUDP(ctx, flows, rtt)
	case c.cfg.Reverse:
		return c.receiveUDP(ctx, flows, rtt)
	}
	plan := blastPlan{
		round: warmUp + 1, size: c.cfg.MessageBytes, bitsPerSecond: c.cfg.BitsPerSecond, gso: c.cfg.GSO,
		omit: c.cfg.Omit, duration: c.cfg.Duration, opened: c.startCPU,
	}
	near, far, err := c.round(ctx, flows, plan, rtt)
	if err != nil {
		return err
	}
	c.datagrams(near, far)
	c.finish(near.Partial)
	return nil
}

// round runs one round: agree, send, and ask what arrived.
func (c *client) round(ctx context.Context, flows []*flow, plan blastPlan, rtt time.Duration) (near, far report, err error) {
	if err := c.begin(ctx, plan.round); err != nil {
		return near, far, err
	}
	if err := c.awaitStart(ctx, c.far.gone); err != nil {
		return near, far, err
	}
	there, cancel := c.whileThere(ctx, c.cfg.Omit+c.cfg.Duration+reportGrace)
	near, err = plan.send(there, flows)
	cancel()
	c.stopCPU()
	if err != nil {
		return near, far, err
	}
	if err := c.far.send(message{Kind: kindSent, Round: plan.round, Report: &near, Grace: graceFor(rtt)}); err != nil {
		return near, far, fmt.Errorf("test aborted after %d datagrams were sent: %w", near.Packets, err)
	}
	// The server settles within longestGrace, also when ctx has ended.
	patience := longestGrace + reportGrace
	if ctx.Err() != nil {
		patience = partialGrace
	}
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if far, err = c.far.expectReport(wait, kindReport); err != nil {
		return near, far, fmt.Errorf("test aborted after %d datagrams were sent: %w", near.Packets, err)
	}
	return near, far, nil
}

// graceFor returns the silence after which missing datagrams count as lost.
func graceFor(rtt time.Duration) time.Duration { return min(max(4*rtt, leastGrace), longestGrace) }

func (c *client) datagrams(sender, receiver report) {
	r := &c.result
	r.PacketsSent, r.PacketsReceived = sender.Packets, receiver.Packets
	r.Reordered, r.Duplicated = receiver.Reordered, receiver.Duplicated
	r.BytesReceived = receiver.Bytes
	r.Jitter, r.LagP99 = receiver.Jitter, sender.LagP99
	r.Lost = sender.Packets - min(receiver.Unique, sender.Packets)
	if sender.Packets > 0 {
		r.LossFraction = float64(r.Lost) / float64(sender.Packets)
	}
	// A queue may drain after the last datagram was sent, and a few datagrams may arrive
	// closer together than they were sent.
	span := max(receiver.Duration, sender.Duration)
	r.DurationSeconds = span.Seconds()
	if span > 0 {
		r.BitsPerSecond = 8 * float64(receiver.Bytes) / span.Seconds()
		r.PacketsPerSecond = float64(receiver.Unique) / span.Seconds()
	}
	c.early(receiver, span)
	if sender.Duration > 0 {
		r.SentBitsPerSecond = 8 * float64(sender.Bytes) / sender.Duration.Seconds()
	}
	if receiver.Buffer > 0 {
		r.ReceiveBufferBytes = receiver.Buffer
	}
}

// receiveUDP runs a reversed test: the server sends.
func (c *client) receiveUDP(ctx context.Context, flows []*flow, rtt time.Duration) error {
	stop := c.receiveFlows(flows)
	defer stop()
	const round = warmUp + 1
	for _, f := range flows {
		f.begin(round)
	}
	if err := c.awaitStart(ctx, c.far.gone); err != nil {
		return err
	}
	if err := c.begin(ctx, round); err != nil {
		return err
	}
	join := c.cpuFrom(c.cfg.Omit)
	wait, cancel := context.WithTimeout(ctx, c.cfg.Omit+c.cfg.Duration+reportGrace)
	sent, err := c.far.expectReport(wait, kindSent)
	cancel()
	join()
	c.stopCPU()
	if err != nil && ctx.Err() != nil {
		c.far.send(message{Kind: kindStop})
		wait, cancel := context.WithTimeout(context.Background(), partialGrace)
		sent, err = c.far.expectReport(wait, kindSent)
		cancel()
	}
	if err != nil {
		return err
	}
	gap := flows[0].came.longest()
	settle(ctx, flows, sent.Packets, graceFor(rtt))
	near := tallies(flows)
	near.Gap = gap
	c.datagrams(sent, near)
	c.finish(sent.Partial)
	return nil
}

// receiveFlows starts a receiving thread for each flow; stop ends them.
func (c *client) receiveFlows(flows []*flow) (stop func()) {
	var receiving sync.WaitGroup
	for _, f := range flows {
		receiving.Go(func() { f.receive(receiveSize(c.cfg.MessageBytes, c.cfg.GSO)) })
	}
	return func() {
		for _, f := range flows {
			f.end()
		}
		receiving.Wait()
	}
}
