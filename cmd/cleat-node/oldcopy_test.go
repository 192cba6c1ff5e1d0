package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"cleat/overlay/control"
)

// progress returns how far the registry says that the host's member has come.
func (h *host) progress(by *host) (index uint64, err error) {
	got, err := by.etcd().Get(h.c.t.Context(), "/cleat/v1/progress/"+h.name)
	if err != nil {
		return 0, err
	}
	var p struct{ Index uint64 }
	for _, kv := range got.Kvs {
		err = json.Unmarshal(kv.Value, &p)
	}
	return p.Index, err
}

// TestOldCopy puts a host back from a copy of its files that is older than what its member of the registry has
// acknowledged, and loses the data of another one.
func TestOldCopy(t *testing.T) {
	t.Parallel()
	c, all := webCluster(t, 3)
	a, old, lost := c.hosts[0], c.hosts[2], c.hosts[1]
	old.node("down")
	node, files := control.Dir(old.state), old.state+".copy" // of cleat-node; what cleat has fits the kernel, which goes on
	must(t, exec.Command("cp", "-a", "--sparse=always", node, files).Run())
	old.node("up")
	c.settled(3)
	before, err := old.progress(a)
	must(t, err)
	a.cleat("net", "create", "shop", "--span")
	for i := range 5 {
		k := a.container(fmt.Sprintf("k%d", i), "shop")
		k.serve()
	}
	extra := a.container("extra", "web")
	extra.serve()
	c.eventually("c registers its progress", func() error {
		now, err := old.progress(a)
		if err == nil && now < before+5 {
			err = fmt.Errorf("%d, and %d before", now, before)
		}
		return err
	})
	s := all[0].stream(all[1])
	old.kill()
	c.eventually("others notice", func() error { return a.sees(old, false) })
	must(t, os.RemoveAll(node))
	must(t, exec.Command("cp", "-a", "--sparse=always", files, node).Run())
	old.node("up")
	took := c.eventually("all hosts agree", func() error { return errors.Join(c.agree(c.hosts...), reachAll(append(all, extra))) })
	t.Logf("all hosts agree after %s", took.Round(100*time.Millisecond))
	log, err := os.ReadFile(old.file("log"))
	must(t, err)
	if !strings.Contains(string(log), "the registry's data on this host is from an older copy") {
		t.Error("nothing says that the data is old")
	}
	c.settled(3)

	lost.kill()
	must(t, os.RemoveAll(lost.file("etcd")))
	lost.node("up")
	c.eventually("all hosts agree", func() error { return errors.Join(c.agree(c.hosts...), reachAll(append(all, extra))) })
	c.settled(3)
	for _, h := range c.hosts {
		all = append(all, h.container("new-"+h.name, "web"))
	}
	c.noAddressTwice(append(all, extra))
	s.losesNone()
}
