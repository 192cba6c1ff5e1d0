package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/named"
	"cleat/network/networktest"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// daemon is what a Docker daemon does, without one.
type fakeDaemon struct {
	t      *testing.T
	server *Server
	host   *netns.NS
	cfg    named.Config
	state  string
	logged []string
	peer   int
}

func newDaemon(t *testing.T) *fakeDaemon {
	t.Helper()
	lab.Need(t)
	host := networktest.NewNS(t, "host")
	d := &fakeDaemon{t: t, host: host, state: filepath.Join(t.TempDir(), "state")}
	store, err := attach.OpenStore(d.state)
	must(t, err)
	d.cfg = named.Config{Attach: attach.Config{Store: store}}
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	must(t, os.WriteFile(resolv, []byte("nameserver 127.0.0.53\nnameserver 192.0.2.53\nnameserver 2001:db8::53\n"), 0o600))
	d.server = New(Config{Do: host.Do, HostResolvConf: resolv,
		Networks: func(context.Context) (named.Config, error) { return d.cfg, nil },
		Log:      func(format string, args ...any) { d.logged = append(d.logged, fmt.Sprintf(format, args...)) }})
	t.Cleanup(d.server.Close)
	return d
}

// post sends a request, and returns the status and the answer.
func (d *fakeDaemon) post(path string, body []byte) (int, []byte) {
	d.t.Helper()
	r := httptest.NewRequestWithContext(context.WithValue(d.t.Context(), peerKey{}, d.peer), http.MethodPost, path, bytes.NewReader(body))
	w := httptest.NewRecorder()
	d.server.ServeHTTP(w, r)
	return w.Code, w.Body.Bytes()
}

// call sends a request and decodes the answer. It returns the error in the answer.
func (d *fakeDaemon) call(method string, request, into any) error {
	d.t.Helper()
	body, err := json.Marshal(request)
	must(d.t, err)
	code, answer := d.post("/"+method, body)
	if code != http.StatusOK {
		d.t.Fatalf("%s: %d %s", method, code, answer)
	}
	var failed failure
	must(d.t, json.Unmarshal(answer, &failed))
	if failed.Err != failed.Error {
		d.t.Errorf("%s: Err is %q, Error is %q", method, failed.Err, failed.Error)
	}
	if failed.Err != "" {
		return errors.New(failed.Err)
	}
	if into != nil {
		must(d.t, json.Unmarshal(answer, into))
	}
	return nil
}

const network1, endpoint1, endpoint2 = "aaaaaaaaaaaaaaaa1", "bbbbbbbbbbbbbbbb1", "bbbbbbbbbbbbbbbb2"

type obj = map[string]any

// create creates a network as dockerd does.
func (d *fakeDaemon) create(options obj) (p requestedPool) {
	d.t.Helper()
	must(d.t, d.call("IpamDriver.RequestPool", requestPool{AddressSpace: addressSpace, Pool: "10.20.0.0/24"}, &p))
	var gateway requestedAddress
	must(d.t, d.call("IpamDriver.RequestAddress", requestAddress{PoolID: p.PoolID, Options: map[string]string{optionAddress: typeGateway}}, &gateway))
	if gateway.Address != "10.20.0.1/24" {
		d.t.Errorf("the gateway is %s", gateway.Address)
	}
	r := createNetwork{NetworkID: network1, Options: obj{optionGeneric: options}, IPv4Data: []poolData{{AddressSpace: addressSpace, Pool: p.Pool, Gateway: gateway.Address}}}
	must(d.t, d.call("NetworkDriver.CreateNetwork", r, nil))
	must(d.t, d.call("NetworkDriver.CreateNetwork", r, nil)) // again: it got no answer
	if !InUse(d.cfg.Attach.Store) {
		d.t.Error("no keeper stays for the network")
	}
	return p
}

// join connects a container as dockerd does.
func (d *fakeDaemon) join(p requestedPool, endpoint string) (address string, j joined) {
	d.t.Helper()
	var a requestedAddress
	must(d.t, d.call("IpamDriver.RequestAddress", requestAddress{PoolID: p.PoolID}, &a))
	var got, again createdEndpoint
	r := createEndpoint{NetworkID: network1, EndpointID: endpoint, Interface: &iface{Address: a.Address}}
	must(d.t, d.call("NetworkDriver.CreateEndpoint", r, &got))
	must(d.t, d.call("NetworkDriver.CreateEndpoint", r, &again))
	if got.Interface == nil || got.Interface.Address != "" || got.Interface.MacAddress == "" || *got.Interface != *again.Interface {
		d.t.Errorf("created %+v, then %+v", got.Interface, again.Interface)
	}
	key := obj{"NetworkID": network1, "EndpointID": endpoint, "SandboxKey": filepath.Join(d.state, "none")}
	must(d.t, d.call("NetworkDriver.Join", key, &j))
	var once joined
	must(d.t, d.call("NetworkDriver.Join", key, &once))
	if once.InterfaceName != j.InterfaceName {
		d.t.Errorf("joined as %v, then as %v", j.InterfaceName, once.InterfaceName)
	}
	return a.Address, j
}

func (d *fakeDaemon) leave(endpoint string) {
	d.t.Helper()
	must(d.t, d.call("NetworkDriver.Leave", endpointRef{network1, endpoint}, nil))
	must(d.t, d.call("NetworkDriver.DeleteEndpoint", endpointRef{network1, endpoint}, nil))
	must(d.t, d.call("NetworkDriver.DeleteEndpoint", endpointRef{network1, endpoint}, nil))
}

func (d *fakeDaemon) release(p requestedPool, address string) {
	d.t.Helper()
	a, err := netip.ParsePrefix(address)
	must(d.t, err)
	must(d.t, d.call("IpamDriver.ReleaseAddress", releaseAddress{p.PoolID, a.Addr().String()}, nil))
}

func (d *fakeDaemon) remove(p requestedPool) {
	d.t.Helper()
	must(d.t, d.call("NetworkDriver.DeleteNetwork", networkRef{network1}, nil))
	must(d.t, d.call("NetworkDriver.DeleteNetwork", networkRef{network1}, nil))
	d.release(p, "10.20.0.1/24")
	must(d.t, d.call("IpamDriver.ReleasePool", releasePool{p.PoolID}, nil))
}

// nothingLeft checks that no file and no device is left.
func (d *fakeDaemon) nothingLeft() {
	d.t.Helper()
	d.server.Close()
	for _, dir := range []string{"docker", "networks", "attachments"} {
		if files, err := os.ReadDir(filepath.Join(d.state, dir)); err == nil && len(files) > 0 {
			d.t.Errorf("%s has %v", dir, files)
		}
	}
	if InUse(d.cfg.Attach.Store) {
		d.t.Error("a keeper stays for networks that are gone")
	}
	h, err := link.Handle(d.host)
	must(d.t, err)
	defer h.Close()
	links, err := h.LinkList()
	must(d.t, err)
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, "cl") || l.Type() == "veth" {
			d.t.Errorf("the host has %s", l.Attrs().Name)
		}
	}
}

func (d *fakeDaemon) endpoint(id string) *named.Endpoint {
	e, _ := named.Store{Store: d.cfg.Attach.Store}.Endpoint("web", attach.Container{Manager: Manager, Key: id}.FileName())
	return e
}

// The protocol's own rules: unknown methods, requests that are none, and what drivers implement.
func TestProtocol(t *testing.T) {
	s := New(Config{Networks: func(context.Context) (named.Config, error) { return named.Config{}, errors.New("no state") }})
	post := func(method, path, body string) (int, string) {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
		return w.Code, w.Body.String()
	}
	for path, want := range map[string]int{"/NetworkDriver.Nonsense": 404, "/": 404, "/NetworkDriver.Join": 200} {
		if code, _ := post(http.MethodPost, path, "{}"); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
	if code, _ := post(http.MethodGet, "/Plugin.Activate", ""); code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", code)
	}
	if _, text := post(http.MethodPost, "/NetworkDriver.Join", "{}"); !strings.Contains(text, `"Err":"no state"`) || !strings.Contains(text, `"Error":"no state"`) {
		t.Errorf("an error is %s", text)
	}
	s.Networks = func(context.Context) (named.Config, error) {
		store, err := attach.OpenStore(t.TempDir() + "/state")
		return named.Config{Attach: attach.Config{Store: store}}, err
	}
	for _, body := range []string{"", "{", `{"NetworkID":7}`} {
		if code, _ := post(http.MethodPost, "/NetworkDriver.CreateNetwork", body); code != http.StatusBadRequest {
			t.Errorf("body %q: %d", body, code)
		}
	}
	for path, want := range map[string]string{
		"/Plugin.Activate":                    `{"Implements":["NetworkDriver","IpamDriver"]}`,
		"/NetworkDriver.GetCapabilities":      `{"Scope":"local","ConnectivityScope":"global","GwAllocChecker":true}`,
		"/NetworkDriver.GwAllocCheck":         `{"SkipIPv4":false,"SkipIPv6":false}`,
		"/NetworkDriver.DiscoverNew":          `{}`,
		"/NetworkDriver.DiscoverDelete":       `{}`,
		"/NetworkDriver.FreeNetwork":          `{}`,
		"/IpamDriver.GetCapabilities":         `{"RequiresMACAddress":false,"RequiresRequestReplay":false}`,
		"/NetworkDriver.AllocateNetwork":      `can't allocate`,
		"/IpamDriver.GetDefaultAddressSpaces": `{"LocalDefaultAddressSpace":"cleat","GlobalDefaultAddressSpace":"cleat-global"}`,
	} {
		if _, text := post(http.MethodPost, path, ""); !strings.Contains(text, want) {
			t.Errorf("%s: %s, want %s", path, text, want)
		}
	}
	for _, id := range []string{"../../x", "", "a/b", strings.Repeat("a", 65)} {
		text := fmt.Sprintf(`{"NetworkID":%q,"EndpointID":%q}`, id, id)
		for _, path := range []string{"CreateNetwork", "CreateEndpoint", "DeleteEndpoint", "DeleteNetwork", "Join"} {
			if _, answer := post(http.MethodPost, "/NetworkDriver."+path, text); !strings.Contains(answer, "is not valid") {
				t.Errorf("%s of %q: %s", path, id, answer)
			}
		}
	}
}

// A container's way through all requests. The last one gone leaves nothing.
func TestLife(t *testing.T) {
	for _, driver := range []string{named.Bridge, named.Routed} {
		t.Run(driver, func(t *testing.T) {
			d := newDaemon(t)
			p := d.create(obj{"cleat.network": "web", "cleat.driver": driver, "com.docker.network.driver.mtu": "1400"})
			address, j := d.join(p, endpoint1)
			l, err := link.Find(d.host, j.InterfaceName.SrcName)
			must(t, err)
			if mtu, err := l.MTU(); err != nil || mtu != 1400 {
				t.Errorf("MTU %d, %v", mtu, err)
			}
			if j.Gateway != "10.20.0.1" || j.DisableGatewayService || j.InterfaceName.DstPrefix != "eth" {
				t.Errorf("joined: %+v", j)
			}
			if routed := driver == named.Routed; routed != strings.HasSuffix(address, "/32") || routed != (len(j.StaticRoutes) == 1) {
				t.Errorf("address %s, routes %+v", address, j.StaticRoutes)
			}
			if e := d.endpoint(endpoint1); e == nil || !slices.Equal(e.Wanted.Managed.Resolvers, []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8::53")}) {
				t.Errorf("endpoint %+v", e)
			}
			ports := obj{"NetworkID": network1, "EndpointID": endpoint1, "Options": obj{optionPorts: []binding{{Proto: 6, Port: 80, HostPort: 8080, HostPortEnd: 8081}, {Proto: 17, Port: 53}}}}
			must(t, d.call("NetworkDriver.ProgramExternalConnectivity", ports, nil))
			if e := d.endpoint(endpoint1); len(e.Wanted.Ports) != 2 || e.Wanted.Ports[0].HostPort != 8080 || e.Wanted.Ports[1].HostPort == 0 {
				t.Errorf("ports %v", e.Wanted.Ports)
			}
			d.join(p, endpoint2)
			ports["EndpointID"] = endpoint2
			ports["Options"] = obj{optionPorts: []binding{{Proto: 6, Port: 80, HostPort: 8080, HostPortEnd: 8081}}}
			must(t, d.call("NetworkDriver.ProgramExternalConnectivity", ports, nil))
			if e := d.endpoint(endpoint2); len(e.Wanted.Ports) != 1 || e.Wanted.Ports[0].HostPort != 8081 {
				t.Errorf("ports %v", e.Wanted.Ports)
			}
			must(t, d.call("NetworkDriver.RevokeExternalConnectivity", endpointRef{network1, endpoint2}, nil))
			ports["Options"] = obj{optionPorts: []binding{{Proto: 6, Port: 80, HostPort: 9000}, {Proto: 6, Port: 81, HostPort: 8080}}}
			if err := d.call("NetworkDriver.ProgramExternalConnectivity", ports, nil); err == nil || !strings.Contains(err.Error(), "port 8080 of the host is in use") {
				t.Errorf("a taken port: %v", err)
			}
			if e := d.endpoint(endpoint2); len(e.Wanted.Ports) != 0 {
				t.Errorf("ports of a failed request: %v", e.Wanted.Ports)
			}
			d.leave(endpoint2)
			d.leave(endpoint1)
			d.release(p, address)
			d.remove(p)
			d.nothingLeft()
		})
	}
}

// An address belongs to one container at a time, whatever the order of requests.
func TestAddressesChangeHands(t *testing.T) {
	d := newDaemon(t)
	p := d.create(obj{"cleat.network": "web"})
	address, _ := d.join(p, endpoint1)
	plain, err := netip.ParsePrefix(address)
	must(t, err)
	request := requestAddress{PoolID: p.PoolID, Address: plain.Addr().String()}
	if err := d.call("IpamDriver.RequestAddress", request, nil); err == nil {
		t.Error("the address of a container was given out again")
	}
	d.leave(endpoint1)
	if err := d.call("IpamDriver.RequestAddress", request, nil); err == nil {
		t.Error("an address that Docker has not released was given out again")
	}
	d.release(p, address)
	must(t, d.call("IpamDriver.RequestAddress", request, nil))
	must(t, d.call("NetworkDriver.CreateEndpoint", createEndpoint{NetworkID: network1, EndpointID: endpoint2, Interface: &iface{Address: address}}, nil))
	must(t, d.call("NetworkDriver.Join", obj{"NetworkID": network1, "EndpointID": endpoint2, "SandboxKey": "/none"}, nil))
	d.release(p, address) // late, of the former container
	if err := d.call("IpamDriver.RequestAddress", request, nil); err == nil {
		t.Error("a late release freed the address of another container")
	}
}

// What a daemon has forgotten is collected, and nothing else. Containers get their names from its API.
func TestCollect(t *testing.T) {
	d := newDaemon(t)
	members := map[string]member{}
	socket := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", socket)
	must(t, err)
	api := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/networks/"):
			_ = json.NewEncoder(w).Encode(obj{"Containers": members})
		case strings.HasPrefix(r.URL.Path, "/containers/"):
			_ = json.NewEncoder(w).Encode(obj{"Name": "/api", "NetworkSettings": obj{"Networks": obj{"web": obj{"EndpointID": endpoint1, "Aliases": []string{"db", "NOT A NAME"}}}}})
		}
	})}
	go func() { _ = api.Serve(l) }()
	t.Cleanup(func() { api.Close() })
	d.peer = os.Getpid()
	if got := apiOf(d.peer); got != socket {
		t.Errorf("the API of this process is at %s, want %s", got, socket)
	}
	members["0123456789abcdef"] = member{Name: "api", EndpointID: endpoint1}
	members["ep-x"] = member{Name: "other", EndpointID: endpoint2}
	p := d.create(obj{"cleat.network": "web"})
	d.join(p, endpoint1)
	d.server.background.Wait()
	if e := d.endpoint(endpoint1); e.Container.Name != "api" || !slices.Equal(e.Names, []string{"api", "0123456789ab", "db"}) {
		t.Errorf("the container is %+v, called %q", e.Container, e.Names)
	}
	must(t, d.call("IpamDriver.RequestAddress", requestAddress{PoolID: p.PoolID, Address: "10.20.0.99"}, nil))
	collect := func() {
		t.Helper()
		must(t, d.server.Collect(t.Context(), 0))
	}
	held := func() int {
		t.Helper()
		var all map[netip.Addr]time.Time
		must(t, d.host.Do(func() (err error) { all, err = named.HeldAddresses(d.cfg, "web", Manager); return err }))
		return len(all)
	}
	must(t, d.server.Collect(t.Context(), time.Hour))
	if held() != 1 || d.endpoint(endpoint1) == nil {
		t.Error("something was collected too early")
	}
	collect()
	if held() != 0 || d.endpoint(endpoint1) == nil {
		t.Errorf("%d addresses are held, endpoint %v", held(), d.endpoint(endpoint1))
	}
	delete(members, "0123456789abcdef")
	collect()
	if e := d.endpoint(endpoint1); e != nil {
		t.Errorf("not collected: %+v", e)
	}
	collect()
	d.remove(p)
	d.nothingLeft()
}

// A socket that a killed process has left is replaced, and one that is in use is not.
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plugins", "cleat.sock")
	first, err := Listen(t.Context(), path)
	must(t, err)
	if _, err := Listen(t.Context(), path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("listening twice: %v", err)
	}
	must(t, first.Close()) // as if killed: the file stays
	second, err := Listen(t.Context(), path)
	must(t, err)
	defer second.Close()
	conn, err := net.Dial("unix", path)
	must(t, err)
	conn.Close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	must(t, second.(*ownListener).withdraw())
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
	third, err := Listen(t.Context(), path)
	must(t, err)
	defer third.Close()
	must(t, os.Remove(path)) // as systemd does when it starts the unit of the socket
	systemd, err := net.Listen("unix", path)
	must(t, err)
	defer systemd.Close()
	must(t, third.(*ownListener).withdraw())
	if _, err := os.Stat(path); err != nil {
		t.Errorf("systemd's socket: %v", err)
	}
	if l, err := Passed(); l != nil || err != nil {
		t.Errorf("passed without systemd: %v, %v", l, err)
	}
}

// What Docker says in resolv.conf about servers that it asks from the host.
func TestAsksFromHost(t *testing.T) {
	for text, want := range map[string]bool{
		"nameserver 127.0.0.11\noptions ndots:0\n": false,
		"nameserver 127.0.0.11\n\n# Based on host file: '/etc/resolv.conf' (internal resolver)\n# ExtServers: [host(192.0.2.53) host(2001:db8::53)]\n# Overrides: []\n": true,
		"nameserver 127.0.0.11\n# ExtServers: [192.0.2.53]\n# Overrides: [nameservers]\n":                                                                               false,
		"": false,
	} {
		if got := asksFromHost([]byte(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
