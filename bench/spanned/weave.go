package spanned

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"cleat/bench/named"
	"cleat/internal/program"
)

// weave runs weaver of Weave Net on each host. Its CNI plug-in connects containers.
type weave struct {
	namespaces
	plugin string // path of weaveutil under the name of the plug-in
	hosts  []*Host
}

const (
	weavePlugin = "weave-net"
	// weaveAPI is where weaver listens on each host, which is also where the plug-in expects it.
	weaveAPI = "127.0.0.1:6784"
	// weaveRemedy names the last release.
	weaveRemedy = "build github.com/weaveworks/weave (v2.8.1) and put it on the PATH as "
)

var weavePrograms = []neededProgram{
	{"weaver", weaveRemedy + "weaver"},
	{"weaveutil", weaveRemedy + "weaveutil"},
	{"iptables", "apt-get install iptables"},
}

func openWeave(cfg Config) (driver, error) {
	path, err := program.Find("weaveutil")
	if err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	w := &weave{plugin: filepath.Join(cfg.Dir, "cni", weavePlugin)}
	if err := os.MkdirAll(filepath.Dir(w.plugin), 0o755); err != nil {
		return nil, err
	}
	if err := os.Symlink(path, w.plugin); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	return w, nil
}

func (w *weave) join(ctx context.Context, h *Host) error {
	w.hosts = append(w.hosts, h)
	path, err := program.Find("weaver")
	if err != nil {
		return err
	}
	args := []string{
		"--name", peerName(h), "--nickname", h.Name, "--http-addr", weaveAPI, "--ipalloc-range", Subnet.String(),
		"--datapath", "datapath", "--db-prefix", filepath.Join(h.dir, "weave"),
		"--no-dns", "--docker-api", "", // it serves names of Docker's containers only
	}
	if len(w.hosts) == 1 {
		args = append(args, "--ipalloc-init", "consensus=1") // it owns all addresses, and gives others a part
	} else {
		args = append(args, "--ipalloc-init", "observer", w.hosts[0].Addr.String())
	}
	if err := h.start(path, args...); err != nil {
		return err
	}
	return await(ctx, func() error { return askWeave(ctx, h, http.MethodGet, "/status") })
}

// peerName returns the name of a host's weaver, which has the form of a MAC address and has to be unique. weaver takes
// it from the machine otherwise, which all hosts of the lab share.
func peerName(h *Host) string {
	a := h.Addr.As4()
	return net.HardwareAddr{2, 0, a[0], a[1], a[2], a[3]}.String()
}

// askWeave sends a request to a host's weaver.
func askWeave(ctx context.Context, h *Host, method, path string) error {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+weaveAPI+path, nil)
	if err != nil {
		return err
	}
	answer, err := clientIn(h.Node.NS).Do(r)
	if err != nil {
		return fmt.Errorf("ask weaver: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("ask weaver for %s: %s", path, answer.Status)
	}
	return nil
}

func (w *weave) cni(ctx context.Context, verb string, c *Container) (named.Usage, error) {
	in, err := json.Marshal(map[string]string{"cniVersion": "0.3.0", "name": "weave", "type": weavePlugin})
	if err != nil {
		return named.Usage{}, err
	}
	return named.Exec(ctx, c.host.Node, named.Command{Args: []string{w.plugin}, In: in, Env: []string{
		"PATH=" + program.SearchPath(), "CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + c.Name, "CNI_NETNS=" + c.path, "CNI_IFNAME=" + inside,
		"CNI_PATH=" + filepath.Dir(w.plugin), "XTABLES_LOCKFILE=" + filepath.Join(c.host.dir, "xtables.lock"),
	}})
}

func (w *weave) connect(ctx context.Context, c *Container, a netip.Addr) (named.Usage, error) {
	if a.IsValid() {
		return named.Usage{}, errors.New("the CNI plug-in of Weave chooses the address")
	}
	u, err := w.cni(ctx, "ADD", c)
	if err != nil {
		return u, err
	}
	return u, c.readAddress()
}

func (w *weave) disconnect(ctx context.Context, c *Container) (named.Usage, error) {
	return w.cni(ctx, "DEL", c)
}

// leave has the first host forget a peer and take over its addresses (`weave rmpeer`).
func (w *weave) leave(ctx context.Context, h *Host) error {
	w.hosts = slices.DeleteFunc(w.hosts, func(o *Host) bool { return o == h })
	return askWeave(ctx, w.hosts[0], http.MethodDelete, "/peer/"+peerName(h))
}

func (w *weave) misses(context.Context, *Host, *Host) (bool, error) {
	return false, fmt.Errorf("%w: weaver misses a peer after a minute of lost heartbeats", ErrNotApplicable)
}

func (w *weave) resolver(*Host) netip.AddrPort { return netip.AddrPort{} }
