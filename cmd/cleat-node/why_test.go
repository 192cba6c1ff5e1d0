package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"cleat/network/why"
)

// why asks why a container reaches another one, from a host.
func (h *host) why(from, to string) (a why.Answer, err error) {
	out, err := h.run(h.c.t.Context(), "cleat", "net", "why", from, to, "--json")
	if out == "" {
		return a, err
	}
	return a, json.Unmarshal([]byte(out), &a)
}

// TestWhy asks about containers of three hosts, on any of them:
//
//	a  ka    b  kb, twin    c  kc, twin
func TestWhy(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.up()
	a, b, last := c.hosts[0], c.hosts[1], c.hosts[2]
	a.createSpan("web")
	ka, kb, kc := a.container("ka", "web"), b.container("kb", "web", "--publish", "8080:80"), last.container("kc", "web")
	b.container("twinb", "web", "--alias", "twin")
	last.container("twinc", "web", "--alias", "twin")
	for _, k := range []*container{ka, kb, kc} {
		answerAs(t, k.NS, 80, k.name)
	}
	for _, h := range c.hosts {
		for _, name := range []string{"ka", "kb", "kc", "twinb", "twinc"} {
			c.eventually(h.name+" knows "+name, func() error { _, _, err := h.find(name); return err })
		}
		c.eventually("ways from "+h.name, func() error {
			s, err := h.status()
			for _, o := range s.Hosts {
				if o.Name != h.name && o.By != "routes" && err == nil {
					err = fmt.Errorf("to %s by %s", o.Name, o.By)
				}
			}
			return err
		})
	}
	// is checks an answer: its verdict, and texts that its checks have.
	is := func(t *testing.T, h *host, from, to string, reached bool, verdict string, checks ...string) {
		t.Helper()
		got, err := h.why(from, to)
		must(t, err)
		if got.Reached != reached || !strings.Contains(got.Verdict, verdict) {
			t.Errorf("%s asks why %s %s: reached %v, %q; want %v, %q\n%+v", h.name, from, to, got.Reached, got.Verdict, reached, verdict, got.Checks)
		}
		for _, want := range checks {
			if !slices.ContainsFunc(got.Checks, func(c why.Check) bool { return strings.Contains(c.Name+" "+c.Text, want) }) {
				t.Errorf("%s asks why %s %s: no check has %q: %+v", h.name, from, to, want, got.Checks)
			}
		}
	}
	t.Run("a container of another host", func(t *testing.T) {
		is(t, a, "ka", "kb:80", true, "reaches kb:80 at "+kb.addr.String(), "hosts kb is on host b, which is alive; packets go there by routes", "ends on host b: ", "listener on host b: ")
		is(t, a, "ka", kb.addr.String()+":80", true, "reaches", "hosts kb is on host b")
		is(t, a, "ka", "kb", true, "reaches kb at")
	})
	t.Run("the source is on another host", func(t *testing.T) {
		for _, h := range c.hosts {
			is(t, h, "web/kb", "kc:80", true, "reaches kc:80", "hosts kc is on host c")
		}
		if got, err := a.why("web/kb", "kc:80"); err != nil || got.Host != "b" {
			t.Errorf("host %q has tried, %v", got.Host, err)
		}
		is(t, last, "web/kb", "ka:80", true, "reaches ka:80")
	})
	t.Run("a name that several hosts have", func(t *testing.T) {
		is(t, a, "ka", "web/twinb@b", true, "reaches")
		_, err := a.why("twin", "kb")
		if err == nil || !strings.Contains(err.Error(), "web/twinb@b") || !strings.Contains(err.Error(), "web/twinc@c") {
			t.Errorf("the source is ambiguous: %v", err)
		}
		if _, err := a.why("web/twinb@d", "kb"); err == nil || !strings.Contains(err.Error(), "the cluster has no such host") {
			t.Errorf("an unknown host: %v", err)
		}
	})
	t.Run("nothing listens on the other host", func(t *testing.T) {
		is(t, a, "ka", "kb:81", false, "no program of", "listener on host b: ")
	})
	t.Run("a rule", func(t *testing.T) {
		last.cleat("net", "deny", "web/ka to web/kb")
		c.eventually("the rule", func() error {
			got, err := a.why("ka", "kb:80")
			if err == nil && got.Reached {
				err = fmt.Errorf("%q", got.Verdict)
			}
			return err
		})
		is(t, a, "ka", "kb:80", false, `the rule "deny web/ka to web/kb" denies it`, "and on host b")
		is(t, last, "web/ka", "kb:80", false, `the rule "deny web/ka to web/kb" denies it`)
		last.cleat("net", "deny", "--remove", "web/ka to web/kb")
	})
	t.Run("all hosts list the containers of all", func(t *testing.T) {
		for _, cmd := range [][]string{{"net", "ls", "web"}, {"net", "inspect", "web"}} {
			out := a.cleat(cmd...)
			for _, want := range []string{"HOST", "kb", "host alive", "8080:80", kc.addr.String()} {
				if !strings.Contains(out, want) {
					t.Errorf("cleat %v shows no %q:\n%s", cmd, want, out)
				}
			}
		}
		var all []struct {
			Host  string   `json:"host"`
			Names []string `json:"names"`
		}
		must(t, json.Unmarshal([]byte(a.cleat("net", "ls", "web", "--json")), &all))
		hosts := map[string]int{}
		for _, k := range all {
			hosts[k.Host]++
		}
		if hosts[""] != 1 || hosts["b"] != 2 || hosts["c"] != 2 {
			t.Errorf("containers by host: %v", hosts)
		}
		if out := a.cleat("net", "ls"); !strings.Contains(out, "1 here, 4 elsewhere") {
			t.Errorf("cleat net ls:\n%s", out)
		}
		if out := a.cleat("graph"); !strings.Contains(out, "on host b") {
			t.Errorf("cleat graph:\n%s", out)
		}
	})
	t.Run("a file makes nothing anew on any host", func(t *testing.T) {
		file := a.c.dir + "/web.yaml"
		text := a.cleat("net", "export")
		if !strings.Contains(text, "span: true") {
			t.Errorf("exported:\n%s", text)
		}
		writeFile(t, file, text)
		if out := a.cleat("net", "apply", file, "--plan"); out != "nothing to change" {
			t.Errorf("host a would change:\n%s", out)
		}
		text, _, _ = strings.Cut(text, "    containers:\n") // other hosts of the test find the containers by their paths
		writeFile(t, file, text)
		for _, h := range c.hosts {
			if out := h.cleat("net", "apply", file, "--plan"); out != "nothing to change" {
				t.Errorf("host %s would change:\n%s", h.name, out)
			}
		}
		writeFile(t, file, "networks:\n  shop: {span: true, rules: [deny shop to 198.51.100.0/24]}\n")
		b.cleat("net", "apply", file)
		for _, h := range c.hosts {
			c.eventually("network shop on "+h.name, func() error { return h.has("shop") })
			if out := h.cleat("net", "apply", file); out != "nothing to change" {
				t.Errorf("host %s changes:\n%s", h.name, out)
			}
		}
		writeFile(t, file, "networks:\n  shop: {}\n")
		if _, err := b.run(t.Context(), "cleat", "net", "apply", file); err == nil || !strings.Contains(err.Error(), "span") {
			t.Errorf("a file without span: %v", err)
		}
	})
	t.Run("the other host is dead", func(t *testing.T) {
		b.unplug()
		b.kill()
		c.eventually("a knows", func() error { return a.sees(b, false) })
		is(t, a, "ka", "kb:80", false, "host b, on which kb is, is not alive", "hosts kb is on host b, which is not alive, since ")
		if _, err := a.why("web/kb", "ka:80"); err == nil || !strings.Contains(err.Error(), "host b is not alive") {
			t.Errorf("from a dead host: %v", err)
		}
		if out := a.cleat("net", "ls", "web"); !strings.Contains(out, "host not alive") {
			t.Errorf("cleat net ls:\n%s", out)
		}
		b.plug()
		b.node("up")
	})
	t.Run("no node runs here", func(t *testing.T) {
		last.kill()
		is(t, last, "kc", "ka:80", true, "reaches ka:80", "hosts ka is on host a, about which this host's cleat-node says nothing")
	})
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
}
