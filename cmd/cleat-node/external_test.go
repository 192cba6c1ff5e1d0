package main_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"
	"cleat/overlay/control"
	"cleat/overlay/gate"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
)

// authority is one for an etcd, and its clients.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, dir string) *authority {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o700))
	a := &authority{t: t, dir: dir}
	a.issue("ca")
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// issue writes NAME.pem and NAME.key. The first one is of the authority itself.
func (a *authority) issue(name string, at ...net.IP) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(a.t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: at, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	parent, signer := a.cert, a.key
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	must(a.t, err)
	if a.cert == nil {
		a.cert, err = x509.ParseCertificate(der)
		must(a.t, err)
		a.key = key
	}
	text, err := x509.MarshalPKCS8PrivateKey(key)
	must(a.t, err)
	must(a.t, os.WriteFile(a.file(name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(a.t, os.WriteFile(a.file(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}), 0o600))
}

// etcd is one outside the cluster, of three servers on a machine of the switch.
type etcd struct {
	*authority
	servers []*embed.Etcd
	stop    []func()
	urls    string
}

func (c *cluster) newEtcd() *etcd {
	c.t.Helper()
	node, err := lab.NewNode("etcd")
	must(c.t, err)
	_, err = c.sw.Plug(lab.End{Node: node, Name: "eth0"}, 0)
	must(c.t, err)
	own, err := netns.Current()
	must(c.t, err)
	lo, err := link.Find(own, "lo")
	must(c.t, err)
	must(c.t, lo.Up())
	e := &etcd{authority: newAuthority(c.t, filepath.Join(c.dir, "etcd"))}
	var at []net.IP
	var initial, peers, urls []string
	for i := range 3 {
		a := netip.AddrFrom4([4]byte{192, 0, 2, byte(251 + i)})
		must(c.t, node.Address("eth0", netip.PrefixFrom(a, 24)))
		at = append(at, a.AsSlice())
		peers = append(peers, freePort(c.t))
		initial = append(initial, fmt.Sprintf("e%d=http://%s", i, peers[i]))
		urls = append(urls, "https://"+a.String()+":2379")
	}
	e.issue("server", at...)
	e.issue("client")
	e.urls = strings.Join(urls, ",")
	for i := range 3 {
		s := e.start(i, strings.Join(initial, ","), peers[i])
		e.servers = append(e.servers, s)
		e.stop = append(e.stop, sync.OnceFunc(s.Close))
		c.t.Cleanup(e.stop[i])
		relay(c.t, node.NS, strings.TrimPrefix(urls[i], "https://"), s.Clients[0].Addr().String())
	}
	for _, s := range e.servers {
		select {
		case <-s.Server.ReadyNotify():
		case err := <-s.Err():
			c.t.Fatal(err)
		}
	}
	return e
}

// start starts a server on loopback of this process. Its threads are in many namespaces.
func (e *etcd) start(i int, initial, peer string) *embed.Etcd {
	e.t.Helper()
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = fmt.Sprintf("e%d", i), e.file(fmt.Sprintf("d%d", i))
	p, client := url.URL{Scheme: "http", Host: peer}, url.URL{Scheme: "https", Host: "127.0.0.1:0"}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{p}, []url.URL{p}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ClientTLSInfo = transport.TLSInfo{CertFile: e.file("server.pem"), KeyFile: e.file("server.key"), TrustedCAFile: e.file("ca.pem"), ClientCertAuth: true}
	cfg.InitialCluster, cfg.InitialClusterToken = initial, "outside"
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.EnableGRPCGateway = false
	s, err := embed.StartEtcd(cfg)
	must(e.t, err)
	return s
}

// relay passes connections to an address in a namespace on to another one.
func relay(t *testing.T, ns *netns.NS, at, to string) {
	t.Helper()
	var l net.Listener
	must(t, ns.Do(func() (err error) {
		l, err = net.Listen("tcp", at)
		return err
	}))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			go gate.Relay(t.Context(), c, out)
		}
	}()
}

// freePort returns an address of loopback that nobody uses.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// flags are what a host with access is given.
func (e *etcd) flags() []string {
	return []string{"--etcd", e.urls, "--etcd-ca", e.file("ca.pem"), "--etcd-cert", e.file("client.pem"), "--etcd-key", e.file("client.key")}
}

// put writes a key as somebody else.
func (e *etcd) put(key, value string) {
	e.t.Helper()
	_, err := e.client().Put(e.t.Context(), key, value)
	must(e.t, err)
}

func (e *etcd) client() *clientv3.Client { return v3client.New(e.servers[0].Server) }

// TestExternal has the registry in an etcd that no host runs. Two hosts have access to it, and relay the third.
func TestExternal(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	e := c.newEtcd()
	a, b, relayed := c.hosts[0], c.hosts[1], c.hosts[2]

	t.Run("bad input", func(t *testing.T) {
		other := newAuthority(t, filepath.Join(c.dir, "other"))
		other.issue("client")
		first := strings.Split(e.urls, ",")[0]
		for _, tt := range []struct {
			name string
			args []string
			want []string
		}{
			{"no TLS", []string{"--etcd", "http://192.0.2.251:2379"}, []string{"without TLS, whoever is on the network can change the registry", "use https://"}},
			{"no URL", []string{"--etcd", "192.0.2.251"}, []string{`"192.0.2.251" is no URL of etcd`, "e.g. --etcd https://"}},
			{"no etcd there", []string{"--etcd", "https://192.0.2.251:1"}, []string{"connection refused", "is etcd there"}},
			{"no certificate", []string{"--etcd", first, "--etcd-ca", e.file("ca.pem")}, []string{"is etcd there"}},
			{"of another authority", []string{"--etcd", first, "--etcd-ca", other.file("ca.pem")}, []string{"unknown authority", "--etcd-ca"}},
			{"a certificate of another authority", []string{"--etcd", first, "--etcd-ca", e.file("ca.pem"), "--etcd-cert", other.file("client.pem"), "--etcd-key", other.file("client.key")}, []string{"etcd"}},
			{"no key", []string{"--etcd", first, "--etcd-cert", e.file("client.pem")}, []string{"a certificate needs its key"}},
			{"no file", []string{"--etcd", first, "--etcd-ca", e.file("none")}, []string{"no such file"}},
			{"files without a URL", []string{"--etcd-ca", e.file("ca.pem")}, []string{"need --etcd"}},
		} {
			_, err := a.run(t.Context(), append([]string{"cleat-node", "up", "--name", "a", "--address", a.addr.String()}, tt.args...)...)
			c.refused(a, tt.name, err, tt.want)
		}
		for _, tt := range []struct{ name, key, value, want string }{
			{"keys of something else", "/cleat/config", "x", "keys of something else below /cleat/, such as /cleat/config"},
			{"a later layout", "/cleat/v2/cluster", "{}", "/cleat/v2/cluster has version 2, which needs a later cleat-node"},
			{"a later record", "/cleat/v1/cluster", `{"version":2}`, "/cleat/v1/cluster has version 2, which needs a later cleat-node"},
			{"another project's record", "/cleat/v1/cluster", "hello", "/cleat/v1/cluster is no record of cleat-node"},
			{"another cluster", "/cleat/v1/cluster", `{"version":1,"id":"abc"}`, "the etcd has cluster abc already"},
		} {
			e.put(tt.key, tt.value)
			_, err := a.run(t.Context(), append([]string{"cleat-node", "up", "--name", "a", "--address", a.addr.String()}, e.flags()...)...)
			c.refused(a, tt.name, err, []string{tt.want})
			_, err = e.client().Delete(t.Context(), tt.key)
			must(t, err)
		}
	})

	a.node(append([]string{"up", "--name", "a", "--address", a.addr.String()}, e.flags()...)...)
	b.node(append([]string{"up", "--name", "b", "--token", a.token()}, e.flags()...)...)
	relayed.join()
	all := c.web()
	c.eventually("all hosts agree", func() error { return c.agree(c.hosts...) })
	for h, want := range map[*host]string{a: "etcd at https://192.0.2.251:2379", relayed: "an etcd that other hosts reach, answers (a, b)"} {
		if out := h.node("status"); !strings.Contains(out, want) {
			t.Errorf("%q is missing in: %s", want, out)
		}
	}
	if _, err := a.run(t.Context(), "cleat-node", "backup", filepath.Join(c.dir, "x")); err == nil || !strings.Contains(err.Error(), "etcdctl snapshot save") {
		t.Errorf("backup: %v", err)
	}

	s := all[0].stream(all[1])
	t.Run("a server stops", func(t *testing.T) {
		e.stop[1]()
		k := relayed.container("k", "web")
		k.serve()
		took := c.eventually("all hosts agree", func() error {
			return errors.Join(c.agree(c.hosts...), all[0].knows(k), all[1].knows(k), all[0].reaches(k))
		})
		t.Logf("all hosts agree after %s", took.Round(100*time.Millisecond))
	})
	t.Run("a host with access dies", func(t *testing.T) {
		a.kill()
		c.eventually("the others agree", func() error {
			s, err := relayed.status()
			if err == nil && !s.Registry.Answers {
				err = errors.New("the registry does not answer")
			}
			return errors.Join(err, b.sees(a, false), relayed.sees(a, false))
		})
		relayed.cleat("net", "create", "shop", "--span")
		if _, err := os.Stat(b.file("authority.pem")); err != nil {
			t.Error(err)
		}
		a.node("up")
		c.eventually("all hosts agree", func() error { return c.agree(c.hosts...) })
	})
	t.Run("a host that is removed", func(t *testing.T) {
		relayed.node("token") // it has access
		a.node("remove", relayed.name)
		c.eventually("it notices", relayed.knowsThatItWasRemoved)
		if _, err := relayed.run(t.Context(), "cleat-node", "token"); err == nil {
			t.Error("it has access to the registry")
		}
	})
	s.losesNone()
}

// refused fails the test unless a host was refused for stated reasons, and has no files.
func (c *cluster) refused(h *host, name string, err error, want []string) {
	c.t.Helper()
	if err == nil {
		c.t.Fatalf("%s: no error", name)
	}
	_, said, _ := strings.Cut(err.Error(), "\n")
	for _, w := range want {
		if !strings.Contains(said, w) {
			c.t.Errorf("%s: %q is missing in: %s", name, w, said)
		}
	}
	if left, _ := os.ReadDir(control.Dir(h.state)); len(left) > 0 {
		c.t.Errorf("%s: %v", name, left)
	}
}
