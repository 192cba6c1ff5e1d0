package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"cleat/internal/statedir"
	"cleat/link"
	"cleat/network/attach"
)

// What Docker refers to is in files of the state directory, STATE:
//
//	STATE/docker/networks/ID.json    which network of Cleat a network of Docker is
//	STATE/docker/endpoints/ID.json   what CreateEndpoint was told, for Join
//	STATE/docker/pools/NAME.json     a pool of addresses that Docker has requested
type store struct{ *attach.Store }

// dockerNetwork is a network of Docker.
type dockerNetwork struct {
	ID      string `json:"id"`
	Network string `json:"network"`           // of Cleat
	Created bool   `json:"created,omitempty"` // the network of Cleat goes with Docker's
	Held    bool   `json:"held,omitempty"`    // Docker requests addresses from our IPAM driver
	Direct  bool   `json:"direct,omitempty"`  // links are made in containers that run (fitsDirect)
	API     string `json:"api,omitempty"`     // socket of the daemon's API, as this process sees it
}

// dockerEndpoint is a container on a network, from CreateEndpoint to DeleteEndpoint.
type dockerEndpoint struct {
	ID        string         `json:"id"`
	NetworkID string         `json:"network"`
	Created   time.Time      `json:"created"`
	Joined    time.Time      `json:"joined,omitzero"`
	Addresses []netip.Prefix `json:"addresses"`
	Chosen    []netip.Addr   `json:"chosen,omitempty"` // those of Addresses that CreateEndpoint has chosen
	MAC       link.MAC       `json:"mac,omitzero"`
	Options   endpointSpec   `json:"options,omitzero"`
	Key       string         `json:"key,omitempty"` // Docker's path of the container's network namespace
}

// pool is a range of addresses that Docker has requested from the IPAM driver.
type pool struct {
	ID      string       `json:"id"`
	Prefix  netip.Prefix `json:"prefix"`
	Range   netip.Prefix `json:"range,omitzero"` // from which addresses are chosen
	Gateway netip.Addr   `json:"gateway,omitzero"`
	Aux     []netip.Addr `json:"aux,omitempty"`     // addresses that Docker has requested for no container
	Network string       `json:"network,omitempty"` // of Cleat; "": it is chosen by CreateNetwork
	Exists  bool         `json:"exists,omitempty"`  // the network of Cleat was there before Docker's
	Bound   bool         `json:"bound,omitempty"`   // a network of Docker uses it
	Users   int          `json:"users"`             // requests without a release
	Created time.Time    `json:"created"`
}

// validID is what Docker uses as an ID. It is part of the names of files.
var validID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-zA-Z]{1,64}$`) })

func checkID(what, id string) error {
	if !validID().MatchString(id) {
		return fmt.Errorf("%s %q is not valid", what, id)
	}
	return nil
}

func (s store) networkFile(id string) string  { return s.Path("docker", "networks", id+".json") }
func (s store) endpointFile(id string) string { return s.Path("docker", "endpoints", id+".json") }
func (s store) poolFile(id string) string {
	return s.Path("docker", "pools", strings.NewReplacer("/", "_", ":", "-").Replace(id)+".json")
}

// prepare creates the directories.
func (s store) prepare() error {
	if err := s.Make(); err != nil {
		return err
	}
	for _, dir := range []string{"networks", "endpoints", "pools"} {
		if err := os.MkdirAll(s.Path("docker", dir), 0o755); err != nil {
			return fmt.Errorf("make state directory: %w", err)
		}
	}
	return nil
}

// network returns a network of Docker; nil if it is unknown.
func (s store) network(id string) (*dockerNetwork, error) {
	if err := checkID("network ID", id); err != nil {
		return nil, err
	}
	return statedir.ReadJSON[dockerNetwork](s.networkFile(id))
}

// endpoint returns an endpoint; nil if it is unknown.
func (s store) endpoint(id string) (*dockerEndpoint, error) {
	if err := checkID("endpoint ID", id); err != nil {
		return nil, err
	}
	return statedir.ReadJSON[dockerEndpoint](s.endpointFile(id))
}

func (s store) pool(id string) (*pool, error) { return statedir.ReadJSON[pool](s.poolFile(id)) }

func (s store) writeNetwork(n *dockerNetwork) error {
	return statedir.WriteJSON(s.networkFile(n.ID), n)
}
func (s store) writeEndpoint(e *dockerEndpoint) error {
	return statedir.WriteJSON(s.endpointFile(e.ID), e)
}
func (s store) writePool(p *pool) error { return statedir.WriteJSON(s.poolFile(p.ID), p) }

// readAll returns the objects in all files of a directory. Those that vanish meanwhile are left out.
func readAll[T any](s store, dir string) ([]*T, error) {
	paths, err := filepath.Glob(s.Path("docker", dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []*T
	var errs []error
	for _, path := range paths {
		v, err := statedir.ReadJSON[T](path)
		errs = append(errs, err)
		if v != nil {
			all = append(all, v)
		}
	}
	return all, errors.Join(errs...)
}

func (s store) networks() ([]*dockerNetwork, error)   { return readAll[dockerNetwork](s, "networks") }
func (s store) endpoints() ([]*dockerEndpoint, error) { return readAll[dockerEndpoint](s, "endpoints") }
func (s store) pools() ([]*pool, error)               { return readAll[pool](s, "pools") }

// InUse reports whether Docker has networks of a state directory.
func InUse(s *attach.Store) bool {
	all, err := (store{s}).networks()
	return err != nil || len(all) > 0
}

// tidy removes the directories if they are empty: the last one gone leaves nothing.
func (s store) tidy() {
	for _, dir := range []string{"networks", "endpoints", "pools", ""} {
		_ = os.Remove(s.Path("docker", dir))
	}
}

// lock waits for the lock under which networks and pools are created and removed.
func (s store) lock(ctx context.Context) (unlock func(), err error) {
	for {
		if err := s.prepare(); err != nil {
			return nil, err
		}
		unlock, err = statedir.Lock(ctx, s.Path("docker"))
		if !errors.Is(err, fs.ErrNotExist) { // tidy has just removed it
			return unlock, err
		}
	}
}
