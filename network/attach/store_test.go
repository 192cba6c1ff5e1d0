package attach_test

import (
	"context"
	"testing"

	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/networktest"
)

// TestDotsInNames attaches containers and links with dots in their names: the link "5" of
// "web.eth0" is not the link "eth0.5" of "web".
func TestDotsInNames(t *testing.T) {
	tb := newTestbed(t)
	cfg := tb.config()
	spaces := map[string]*netns.NS{"web": tb.web, "web.eth0": networktest.NewNS(t, "other")}
	cfg.Find = func(_ context.Context, ref string) (attach.Container, *netns.NS, error) {
		in, ok := spaces[ref]
		if !ok {
			return attach.Container{}, nil, netns.ErrNotFound
		}
		ns, err := netns.Open(in.Path())
		return attach.Container{Ref: ref, Engine: "test", Name: ref, Path: in.Path()}, ns, err
	}
	try := tb.attacher(cfg)
	must(t, try("web", attach.Spec{Kind: "bridge", Parent: "br0", Name: "eth0.5"}))
	must(t, try("web.eth0", attach.Spec{Kind: "bridge", Parent: "br0", Name: "5"}))
	must(t, tb.onHost(func() error {
		_, _, err := attach.Detach(t.Context(), cfg, "web.eth0", "5")
		return err
	}))
	if all := tb.list(); len(all) != 1 || all[0].Container.Name != "web" || all[0].State != attach.Attached {
		t.Errorf("after detaching from web.eth0: %+v", all)
	}
	find(t, tb.web, "eth0.5").Close()
	must(t, tb.onHost(func() error {
		_, _, err := attach.Detach(t.Context(), cfg, "web", "eth0.5")
		return err
	}))
}
