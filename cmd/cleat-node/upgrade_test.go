package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestUpgrade replaces the programs of one host after the other, while streams run between all of them.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.up()
	all := c.web()
	c.settled(3)
	var streams []*stream
	for i, k := range all {
		streams = append(streams, k.stream(all[(i+1)%3]))
	}
	later := filepath.Join(c.dir, "later")
	must(t, os.CopyFS(later, os.DirFS(c.programs)))
	for i, h := range c.hosts {
		h.node("down")
		h.programs = later
		h.node("up")
		c.settled(3)
		if got, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", h.pid())); err != nil || filepath.Dir(got) != h.programs {
			t.Errorf("node %s runs %s, %v", h.name, got, err)
		}
		// Hosts of both versions go on changing things.
		extra := h.container(fmt.Sprintf("extra%d", i), "web")
		extra.serve()
		for _, k := range all {
			c.eventually("a new container is known", func() error { return k.knows(extra) })
			if err := k.reaches(extra); err != nil {
				t.Error(err)
			}
		}
		name := fmt.Sprintf("net%d", i)
		h.cleat("net", "create", name, "--span")
		for _, o := range c.hosts {
			c.eventually("network on "+o.name, func() error {
				_, err := o.run(t.Context(), "cleat", "net", "inspect", name)
				return err
			})
		}
	}
	for i, s := range streams {
		if sent, lost, _ := s.end(); lost > 0 {
			t.Errorf("stream %d: %d of %d datagrams are lost", i, lost, sent)
		}
	}
}
