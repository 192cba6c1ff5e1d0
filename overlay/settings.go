package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"cleat/internal/statedir"
	"cleat/overlay/member"
	"cleat/overlay/registry"
	"cleat/overlay/trust"
)

// Settings are what a host remembers of the cluster that it has joined.
type Settings struct {
	Version int        `json:"version"`
	Host    string     `json:"host"`
	Cluster string     `json:"cluster"`           // its id
	Address netip.Addr `json:"address"`           // of the host, for the others
	Port    uint16     `json:"port"`              // of its gate
	MAC     string     `json:"mac"`               // of its VXLAN device
	First   bool       `json:"first,omitempty"`   // the host has begun the cluster
	Removed bool       `json:"removed,omitempty"` // the cluster has removed the host, which may join again
	// Dataplane is the Dataplane of the host's record in the registry.
	Dataplane string `json:"dataplane,omitempty"`
	BGP       *BGP   `json:"bgp,omitempty"`
	// Etcd is the registry, if it is an etcd which no host of the cluster runs, and this host has access to it.
	Etcd *registry.External `json:"etcd,omitempty"`
	// Incarnation is that of the registry (registry.Cluster) which this host uses.
	Incarnation string `json:"incarnation,omitempty"`
	Encrypt     bool   `json:"encrypt,omitempty"` // the cluster is to encrypt, if it does not yet
	Metrics     string `json:"metrics,omitempty"` // address and port at which Prometheus gets figures; "": nowhere
	// Uplinks are the devices of tunnels to other hosts; without any, that of Address.
	Uplinks []string `json:"uplinks,omitempty"`
}

// BGP is how a host exchanges routes with routers.
type BGP struct {
	AS    uint32    `json:"as"`
	Port  uint16    `json:"port,omitempty"` // TCP, listened on; 0: the host only dials
	Peers []BGPPeer `json:"peers"`
}

// BGPPeer is a router or a route reflector.
type BGPPeer struct {
	Address     netip.Addr    `json:"address"`
	AS          uint32        `json:"as,omitempty"`       // 0: that of the host
	Password    string        `json:"password,omitempty"` // a file
	BFD         bool          `json:"bfd,omitempty"`
	Multihop    uint8         `json:"multihop,omitempty"`
	Hold        time.Duration `json:"hold,omitempty"`
	MaxPrefixes uint32        `json:"max_prefixes,omitempty"`
	Default     bool          `json:"default,omitempty"` // its default route is accepted
}

// gate returns the address of the host's gate.
func (s Settings) gate() netip.AddrPort { return netip.AddrPortFrom(s.Address, s.Port) }

// dir is a host's directory.
type dir string

func (d dir) path(name string) string { return filepath.Join(string(d), name) }

// Names of files.
const (
	settingsFile  = "node.json"
	identityFile  = "identity.pem"
	authorityFile = "authority.pem"
	mirrorFile    = "mirror.json"
	contactFile   = "contact.json"
	registryDir   = "etcd"
	oldRegistry   = "etcd.old" // what registryDir was before the registry was restored from a backup
	newRegistry   = "etcd.new" // while it is restored
)

// Load returns the settings of a host; nil if it belongs to no cluster.
func Load(path string) (*Settings, error) {
	return statedir.ReadJSON[Settings](dir(path).path(settingsFile))
}

func (d dir) writeSettings(s Settings) error { return statedir.WriteJSON(d.path(settingsFile), s) }

// change changes the settings of a host that belongs to a cluster, unless f returns an error.
func change(path string, f func(*Settings) error) error {
	s, err := Load(path)
	if err == nil && s == nil {
		err = errors.New("this host belongs to no cluster")
	}
	if err == nil {
		err = f(s)
	}
	if err != nil {
		return err
	}
	return dir(path).writeSettings(*s)
}

// SetMetrics sets where a host that belongs to a cluster serves figures to Prometheus; "" means nowhere.
func SetMetrics(path, address string) error {
	return change(path, func(s *Settings) error { s.Metrics = address; return nil })
}

// SetBGP replaces how a host that belongs to a cluster exchanges routes; nil means that it does not.
func SetBGP(path string, b *BGP) error {
	return change(path, func(s *Settings) error { s.BGP = b; return nil })
}

// SetDataplane sets the dataplane of a host that belongs to a cluster, for a Node that is started afterwards.
func SetDataplane(path, plane string) error {
	m, err := dir(path).readMirror()
	if err != nil {
		return err
	}
	return change(path, func(s *Settings) error {
		if err := CheckDataplane(plane); err != nil {
			return err
		}
		if s.Encrypt || m.Cluster.Encryption != "" {
			if err := CheckEncrypted(plane); err != nil {
				return err
			}
		}
		s.Dataplane = plane
		return nil
	})
}

// SetUplinks sets the uplinks of a host that belongs to a cluster, for a Node that is started afterwards.
func SetUplinks(path string, devices []string) error {
	return change(path, func(s *Settings) error { s.Uplinks = devices; return nil })
}

// SetEncrypt makes a host that belongs to a cluster have it encrypt everything between hosts. It can't be undone.
func SetEncrypt(path string) error {
	return change(path, func(s *Settings) error {
		s.Encrypt = true
		return errors.Join(CheckEncrypted(s.Dataplane), CheckPort(s.Port))
	})
}

// encrypts makes a cluster encrypt as soon as all hosts have keys.
func encrypts(c *registry.Cluster) {
	if c.Encryption == "" {
		c.Encryption, c.Rotated = registry.EncryptionPending, time.Now().UTC().Truncate(time.Second)
	}
}

func (d dir) identity() (*trust.Identity, error) {
	text, err := os.ReadFile(d.path(identityFile))
	if err != nil {
		return nil, fmt.Errorf("read the host's identity: %w", err)
	}
	return trust.ParseIdentity(text)
}

// authority returns the cluster's authority; nil if this host does not have it.
func (d dir) authority() (*trust.Authority, error) {
	text, err := os.ReadFile(d.path(authorityFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the cluster's authority: %w", err)
	}
	return trust.ParseAuthority(text)
}

// startsMember reports whether this host has a member of the registry, or is to begin with the first one: hosts are
// how many the cluster has.
func (d dir) startsMember(s *Settings, hosts int) bool {
	_, err := os.Stat(d.path(registryDir))
	return member.Exists(d.path(registryDir)) || s.First && hosts < 2 && err == nil
}

// writeIdentity writes a host's identity.
func (d dir) writeIdentity(id *trust.Identity) error {
	text, err := id.PEM()
	if err != nil {
		return err
	}
	return statedir.WriteSecret(d.path(identityFile), text)
}

func (d dir) writeAuthority(a *trust.Authority) error {
	text, err := a.PEM()
	if err != nil {
		return err
	}
	return statedir.WriteSecret(d.path(authorityFile), text)
}

func (d dir) readMirror() (*mirror, error) {
	m := newMirror()
	saved, err := statedir.ReadJSON[mirror](d.path(mirrorFile))
	if err != nil || saved == nil {
		return m, err
	}
	m.Cluster, m.At, m.Renew = saved.Cluster, saved.At, saved.Renew
	for k, v := range saved.Hosts {
		m.Hosts[k] = v
	}
	for k, v := range saved.Networks {
		m.Networks[k] = v
	}
	for k, v := range saved.Blocks {
		m.Blocks[k] = v
	}
	maps.Copy(m.Removed, saved.Removed)
	maps.Copy(m.Lost, saved.Lost)
	maps.Copy(m.Surplus, saved.Surplus)
	return m, nil
}
