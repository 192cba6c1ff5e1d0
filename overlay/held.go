package overlay

import (
	"bytes"
	"compress/flate"
	"context"
	"fmt"
	"io"
	"time"

	"cleat/overlay/registry"
)

// held has the endpoints of a host on a network: as they are, or deflated to about a third if they have not changed for
// a while. With 100 endpoints, deflating takes 0.13 ms and inflating 0.06 ms (AMD EPYC).
type held struct {
	plain    packed
	deflated []byte // if set, plain is nil
	count    int
	touched  bool // changed since compact was called last
}

// open returns the endpoints. They may be changed only if they are held again.
func (h held) open() packed {
	if h.deflated == nil {
		return h.plain
	}
	p, err := io.ReadAll(flate.NewReader(bytes.NewReader(h.deflated)))
	if err != nil {
		panic(fmt.Errorf("inflate endpoints that this process has deflated: %w", err))
	}
	return p
}

// store adds an endpoint to those of its host on its network, or removes it.
func store(ends map[endpointsOf]held, of endpointsOf, e registry.Endpoint, removed bool) {
	h := ends[of]
	p := h.open()
	if _, _, record := p.find(e.ID); record != nil {
		h.count--
	}
	if removed {
		p = p.remove(e.ID)
	} else {
		p = p.set(e)
		h.count++
	}
	if len(p) == 0 {
		delete(ends, of)
		return
	}
	ends[of] = held{plain: p, count: h.count, touched: true}
}

// push adds an endpoint to those of its host on its network, of which none is deflated, or has an id that is not less.
func push(ends map[endpointsOf]held, of endpointsOf, e registry.Endpoint) {
	h := ends[of]
	ends[of] = held{plain: h.plain.push(e), count: h.count + 1, touched: true}
}

// deflateLevel is that of package flate: higher ones gain less than 1 % here.
const deflateLevel = 3

// deflater deflates held endpoints.
type deflater struct {
	w *flate.Writer
	b bytes.Buffer
}

func newDeflater() (*deflater, error) {
	d := &deflater{}
	var err error
	d.w, err = flate.NewWriter(&d.b, deflateLevel)
	return d, err
}

// shrink returns h, deflated if it was not touched since it was shrunk last.
func (d *deflater) shrink(h held) (held, error) {
	if h.touched || h.deflated != nil {
		h.touched = false
		return h, nil
	}
	d.b.Reset()
	d.w.Reset(&d.b)
	if _, err := d.w.Write(h.plain); err != nil {
		return h, err
	}
	if err := d.w.Close(); err != nil {
		return h, err
	}
	return held{deflated: bytes.Clone(d.b.Bytes()), count: h.count}, nil
}

// compactEvery is the time between looks for endpoints that have not changed: what a change of a hundred hosts a second
// touches is not worth it.
const compactEvery = 10 * time.Second

// compactLoop deflates endpoints that don't change. It locks the mirror for those of one host at a time.
func (n *Node) compactLoop(ctx context.Context) {
	t := time.NewTicker(compactEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if err := n.compact(); err != nil {
				n.cfg.Log("deflate endpoints: %v", err)
			}
		}
	}
}

func (n *Node) compact() error {
	n.mu.Lock()
	var all []endpointsOf
	for of, h := range n.mirror.ends {
		if h.deflated == nil {
			all = append(all, of)
		}
	}
	n.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	d, err := newDeflater()
	if err != nil {
		return err
	}
	for _, of := range all {
		if err := n.compactOne(d, of); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) compactOne(d *deflater, of endpointsOf) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	h, ok := n.mirror.ends[of]
	if !ok {
		return nil
	}
	h, err := d.shrink(h)
	if err == nil {
		n.mirror.ends[of] = h
	}
	return err
}
