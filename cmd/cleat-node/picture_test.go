package main_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"cleat/lab/labtest"
	"cleat/overlay/control"
)

// TestPicture asks one host for the picture of three, and another one for figures.
func TestPicture(t *testing.T) {
	c := newCluster(t, 3)
	c.up()
	a, b := c.hosts[0], c.hosts[1]
	for _, h := range c.hosts[:2] {
		must(t, h.Sysctl("net/netfilter/nf_conntrack_acct", "1"))
	}
	a.createSpan("web")
	var all []*container
	for _, h := range c.hosts {
		k := h.container("k"+h.name, "web")
		k.serve()
		all = append(all, k)
	}
	const size = 100_000 // bytes
	labtest.Serve(t, all[1].NS, ":9", func(c net.Conn) { io.Copy(io.Discard, c) })
	c.eventually("ka sends to kb", func() error { return send(all[0], all[1], size) })
	c.eventually("kc asks kb", func() error { return all[2].reaches(all[1]) })

	picture := func(h *host) (control.Picture, error) { return control.New(h.state).Picture(t.Context(), false) }
	end := func(k *container) control.End {
		p, err := picture(k.host)
		must(t, err)
		for _, one := range p.Containers {
			if one.Host == k.host.name {
				return control.End{Network: "web", Host: one.Host, ID: one.ID}
			}
		}
		return control.End{}
	}
	for _, h := range c.hosts {
		c.eventually("the picture of "+h.name, func() error {
			p, err := picture(h)
			if err != nil {
				return err
			}
			if len(p.Containers) != 3 || len(p.Reports) != 3 || len(p.Blocks["web"]) != 3 || len(p.Started) != 3 {
				return fmt.Errorf("%+v", p)
			}
			for name, r := range p.Reports {
				if r.Error != "" || !r.Registry || r.Traffic == nil || len(r.Traffic.Links) != 1 || r.Traffic.Links[0].Received == 0 || r.Traffic.Between == nil || r.Traffic.Counted != (name != "c") {
					return fmt.Errorf("report of %s: %+v %+v", name, r, r.Traffic)
				}
			}
			return nil
		})
	}
	from, to, asking := end(all[0]), end(all[1]), end(all[2])
	c.eventually("who talks to whom", func() error {
		p, err := picture(c.hosts[2]) // which takes part in neither
		if err != nil {
			return err
		}
		var sent, asked bool
		for _, talk := range p.Talks {
			sent = sent || talk.From == from && talk.To == to && talk.Port == 9 && talk.Requests > size && talk.Requests < 2*size && talk.By == "a"
			asked = asked || talk.From == asking && talk.To == to && talk.Port == echoPort && talk.By == "b" // c does not count bytes
		}
		if !sent || !asked {
			return fmt.Errorf("%+v", p.Talks)
		}
		return nil
	})

	t.Run("figures", func(t *testing.T) {
		b.node("down")
		c.eventually("b has ended", func() error {
			if _, err := b.status(); errors.Is(err, control.ErrNotRunning) {
				return nil
			}
			return errors.New("it runs")
		})
		c.eventually("b is up", func() error {
			_, err := b.run(t.Context(), "cleat-node", "up", "--metrics", "127.0.0.1:7792")
			return err
		})
		c.eventually("figures of b", func() error {
			text, err := httpGet(b, "http://127.0.0.1:7792/metrics")
			for _, want := range []string{"cleat_registry_up 1\n", `cleat_host_up{host="c"} 1`, `cleat_container_receive_bytes_total{container="`, `network="web"} `, "cleat_between_hosts_receive_bytes_total "} {
				if err == nil && !strings.Contains(text, want) {
					err = fmt.Errorf("no %s in %s", want, text)
				}
			}
			return err
		})
	})
	t.Run("a later start serves figures at the same address, until it is told not to", func(t *testing.T) {
		const url = "http://127.0.0.1:7792/metrics"
		b.kill()
		b.node("up")
		c.eventually("figures of b", func() error { _, err := httpGet(b, url); return err })
		b.kill()
		if _, err := b.run(t.Context(), "cleat-node", "up", "--metrics", "192.0.2.77:7792"); err == nil || !strings.Contains(err.Error(), "listen for Prometheus") {
			t.Errorf("an address of another host: %v", err)
		}
		b.node("up", "--metrics", "none")
		b.kill()
		b.node("up")
		if text, err := httpGet(b, url); err == nil {
			t.Errorf("figures are still served: %.100s", text)
		}
	})
	t.Run("a host that does not answer", func(t *testing.T) {
		b.node("down")
		c.eventually("b is not alive", func() error {
			p, err := picture(a)
			if err == nil && (p.Reports["b"].Error == "" || p.Reports["b"].Since.IsZero() || p.Reports["c"].Error != "") {
				err = fmt.Errorf("%+v", p.Reports)
			}
			return err
		})
	})
}

// send sends bytes from one container to another.
func send(from, to *container, size int) error {
	var conn net.Conn
	err := from.NS.Do(func() (err error) { conn, err = net.Dial("tcp", fmt.Sprintf("%s:9", to.addr)); return err })
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write(make([]byte, size))
	return err
}

// httpGet returns what a server on a host answers.
func httpGet(h *host, url string) (string, error) {
	t := &http.Transport{DisableKeepAlives: true, Dial: func(network, addr string) (c net.Conn, err error) {
		err = h.NS.Do(func() (err error) { c, err = net.Dial(network, addr); return err })
		return c, err
	}}
	r, err := (&http.Client{Transport: t}).Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return string(text), err
}
