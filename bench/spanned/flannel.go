package spanned

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cleat/bench/named"
	"cleat/internal/program"
)

// flannel runs flanneld, with an etcd on the first host.
type flannel struct {
	namespaces
	cfg     Config
	backend string
	plugins string // directory of the CNI plug-ins
	first   *Host
	http    *http.Client // reaches etcd
	results map[*Container][]byte
}

var flannelPrograms = []neededProgram{
	{"flanneld", "build github.com/flannel-io/flannel and put it on the PATH as flanneld"},
	{"etcd", "apt-get install etcd-server, or put an etcd of version 3.4 or later on the PATH"},
	{"iptables", "apt-get install iptables"},
}

func checkFlannel(name string) error {
	if err := checkPrograms(name, flannelPrograms); err != nil {
		return err
	}
	_, err := named.PluginDir("bridge", "host-local")
	return err
}

func openFlannel(backend string) func(Config) (driver, error) {
	return func(cfg Config) (driver, error) {
		dir, err := named.PluginDir("bridge", "host-local")
		return &flannel{cfg: cfg, backend: backend, plugins: dir, results: map[*Container][]byte{}}, err
	}
}

const (
	etcdPort   = 2379
	flannelKey = "/coreos.com/network/" // flanneld's default
)

func (f *flannel) join(ctx context.Context, h *Host) error {
	if f.first == nil {
		f.first = h
		if err := f.startEtcd(ctx, h); err != nil {
			return err
		}
	}
	path, err := program.Find("flanneld")
	if err != nil {
		return err
	}
	if err := h.Node.Sysctl("net/ipv4/ip_forward", "1"); err != nil {
		return err
	}
	err = h.start(path, "-etcd-endpoints", f.etcd(), "-public-ip", h.Addr.String(), "-iface", h.Addr.String(), "-subnet-file", f.subnetFile(h))
	if err != nil {
		return err
	}
	return await(ctx, func() error {
		_, _, err := f.subnet(h)
		return err
	})
}

func (f *flannel) etcd() string { return fmt.Sprintf("http://%s:%d", f.first.Addr, etcdPort) }

func (f *flannel) subnetFile(h *Host) string { return filepath.Join(h.dir, "subnet.env") }

// startEtcd starts the registry, and writes flannel's configuration.
func (f *flannel) startEtcd(ctx context.Context, h *Host) error {
	path, err := program.Find("etcd")
	if err != nil {
		return err
	}
	if err := h.start(path, "--data-dir", filepath.Join(h.dir, "etcd"), "--listen-client-urls", f.etcd(), "--advertise-client-urls", f.etcd()); err != nil {
		return err
	}
	f.http = clientIn(h.Node.NS)
	config, err := json.Marshal(map[string]any{"Network": Subnet.String(), "Backend": map[string]any{"Type": f.backend}})
	if err != nil {
		return err
	}
	return await(ctx, func() error {
		return f.ask(ctx, "put", map[string]string{"key": flannelKey + "config", "value": string(config)})
	})
}

// ask sends a request to etcd (its gRPC gateway).
func (f *flannel) ask(ctx context.Context, what string, fields map[string]string) error {
	coded := map[string]string{}
	for k, v := range fields {
		coded[k] = base64.StdEncoding.EncodeToString([]byte(v))
	}
	text, err := json.Marshal(coded)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, f.etcd()+"/v3/kv/"+what, bytes.NewReader(text))
	if err != nil {
		return err
	}
	answer, err := f.http.Do(r)
	if err != nil {
		return fmt.Errorf("ask etcd: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
		return fmt.Errorf("ask etcd: %s: %s", answer.Status, text)
	}
	return nil
}

// subnet returns the subnet of a host, with the address of its bridge, and the MTU of its containers.
func (f *flannel) subnet(h *Host) (p netip.Prefix, mtu int, err error) {
	text, err := os.ReadFile(f.subnetFile(h))
	if err != nil {
		return p, 0, fmt.Errorf("flanneld has not written its subnet: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "FLANNEL_SUBNET":
			p, err = netip.ParsePrefix(value)
		case "FLANNEL_MTU":
			mtu, err = strconv.Atoi(value)
		}
		if err != nil {
			return p, 0, fmt.Errorf("read %s of flanneld: %w", key, err)
		}
	}
	return p, mtu, nil
}

// bridge runs the CNI plug-in bridge, with host-local.
func (f *flannel) bridge(ctx context.Context, verb string, c *Container) (named.Usage, error) {
	p, mtu, err := f.subnet(c.host)
	if err != nil {
		return named.Usage{}, err
	}
	conf := map[string]any{
		"cniVersion": "1.0.0", "name": "flannel", "type": "bridge", "bridge": "cni0", "isGateway": true, "mtu": mtu,
		"ipam": map[string]any{
			"type": "host-local", "subnet": p.Masked().String(), "dataDir": filepath.Join(c.host.dir, "cni"),
			"routes": []map[string]string{{"dst": Subnet.String()}},
		},
	}
	if f.results[c] != nil {
		conf["prevResult"] = json.RawMessage(f.results[c])
	}
	in, err := json.Marshal(conf)
	if err != nil {
		return named.Usage{}, err
	}
	return named.Exec(ctx, c.host.Node, named.Command{Args: []string{filepath.Join(f.plugins, "bridge")}, In: in, Env: []string{
		"PATH=" + program.SearchPath(), "CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + c.Name, "CNI_NETNS=" + c.path, "CNI_IFNAME=" + inside, "CNI_PATH=" + f.plugins,
	}})
}

func (f *flannel) connect(ctx context.Context, c *Container, a netip.Addr) (named.Usage, error) {
	if a.IsValid() {
		return named.Usage{}, errors.New("a container of flannel can't have an address of another host")
	}
	u, err := f.bridge(ctx, "ADD", c)
	if err != nil {
		return u, err
	}
	var got struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(u.Output, &got); err != nil || len(got.IPs) == 0 {
		return u, fmt.Errorf("read the address of container %s in %.200q: %w", c.Name, u.Output, err)
	}
	c.Addr, f.results[c] = got.IPs[0].Address.Addr(), u.Output
	return u, nil
}

func (f *flannel) disconnect(ctx context.Context, c *Container) (named.Usage, error) {
	u, err := f.bridge(ctx, "DEL", c)
	delete(f.results, c)
	return u, err
}

// leave removes the host's lease, as a person does who does not want to wait for its end, after a day.
func (f *flannel) leave(ctx context.Context, h *Host) error {
	p, _, err := f.subnet(h)
	if err != nil {
		return err
	}
	key := flannelKey + "subnets/" + strings.ReplaceAll(p.Masked().String(), "/", "-")
	return f.ask(ctx, "deleterange", map[string]string{"key": key})
}

func (f *flannel) misses(context.Context, *Host, *Host) (bool, error) {
	return false, fmt.Errorf("%w: flannel does not notice that a host is gone", ErrNotApplicable)
}

func (f *flannel) resolver(*Host) netip.AddrPort { return netip.AddrPort{} }
