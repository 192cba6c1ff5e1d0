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
	c, all := webCluster(t, 3)
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
		h.createSpan(name)
	}
	for _, s := range streams {
		s.losesNone()
	}
}
