package named

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cleat/internal/statedir"
	"cleat/network/attach"
)

// Store holds the networks of one state directory, beside the attachments that connect
// containers to them. STATE is the directory's Path, and RUN its RunPath.
//
//	STATE/networks/NAME/network.json        a Network
//	STATE/networks/NAME/endpoints/ID.json   an Endpoint
//	STATE/networks/NAME/addresses/          which addresses are taken, and by whom (package ipam)
//	STATE/networks/NAME/names/HOST          a container's own name, and whose it is
//	STATE/networks/.NAME/                   a network that is being created or removed
//	STATE/ports/                            which ports are published, and by whom (ports.go)
//	STATE/resolvers/ID.json                 where a container asks for names (resolver.go)
//	RUN/netops/OPERATION                    journal of an operation in progress, or of one that died
//	RUN/foreign                             is locked while firewalls of other programs are changed
type Store struct {
	*attach.Store
	files *Files // nil: files are read each time
}

// prepare creates the directories.
func (s Store) prepare() error {
	return s.Prepare([]string{"networks", "ports", "resolvers"}, []string{"netops", "foreign"})
}

func (s Store) networksDir() string           { return s.Path("networks") }
func (s Store) networkDir(name string) string { return s.Path("networks", name) }

// discarded returns the directory of a network that is being removed, or is not complete yet.
func (s Store) discarded(name string) string { return s.Path("networks", "."+name) }

func (s Store) networkFile(name string) string     { return s.Path("networks", name, "network.json") }
func (s Store) endpointsDir(network string) string { return s.Path("networks", network, "endpoints") }
func (s Store) nameClaim(network, host string) string {
	return s.Path("networks", network, "names", host)
}
func (s Store) addressesDir(network string) string { return s.Path("networks", network, "addresses") }
func (s Store) endpointFile(network, id string) string {
	return filepath.Join(s.endpointsDir(network), id+".json")
}

// lockNetworks waits for the lock under which networks are created and removed.
func (s Store) lockNetworks(ctx context.Context) (unlock func(), err error) {
	return statedir.Lock(ctx, s.networksDir())
}

// lockPorts waits for the lock under which ports are claimed.
func (s Store) lockPorts(ctx context.Context) (unlock func(), err error) {
	return statedir.Lock(ctx, s.Path("ports"))
}

// Network returns a network. The error is a *NoNetworkError if there is none of this name.
func (s Store) Network(name string) (*Network, error) {
	n, err := readFile[Network](s.files, s.networkFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		names, _ := s.networkNames()
		return nil, &NoNetworkError{Name: name, Names: names}
	}
	if err == nil && n.Version > networkVersion {
		err = &LaterVersionError{What: "network " + name, Version: n.Version}
	}
	return n, err
}

// LaterVersionError means that a later version of this program has written a file.
type LaterVersionError struct {
	What    string // e.g. "network web"
	Version int    // of the file
}

func (e *LaterVersionError) Error() string {
	return fmt.Sprintf("read %s: version %d of its file needs a later cleat", e.What, e.Version)
}

// IsEmpty reports whether there is no network.
func (s Store) IsEmpty() bool {
	all, err := s.networkNames()
	return err == nil && len(all) == 0
}

// InUse reports whether a container is on any network.
func (s Store) InUse() bool {
	networks, err := s.networkNames()
	return err != nil || slices.ContainsFunc(networks, func(n string) bool {
		any, err := s.hasEndpoints(n)
		return err != nil || any
	})
}

// hasEndpoints reports whether containers are on a network. It does not read the whole directory.
func (s Store) hasEndpoints(network string) (bool, error) {
	dir, err := os.Open(s.endpointsDir(network))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list endpoints of %s: %w", network, err)
	}
	defer dir.Close()
	for {
		files, err := dir.Readdirnames(16)
		if slices.ContainsFunc(files, func(f string) bool { return strings.HasSuffix(f, endpointSuffix) }) {
			return true, nil
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("list endpoints of %s: %w", network, err)
		}
	}
}

// endpointSuffix ends the names of endpoints' files.
const endpointSuffix = ".json"

// networkNames returns the names of all networks, sorted.
func (s Store) networkNames() ([]string, error) {
	dirs, err := os.ReadDir(s.networksDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list networks: %w", err)
	}
	var names []string
	for _, d := range dirs {
		if networkName().MatchString(d.Name()) {
			names = append(names, d.Name())
		}
	}
	return names, nil
}

// Networks returns all networks, sorted by name. Files that can't be read are an error beside
// the others.
func (s Store) Networks() ([]*Network, error) {
	names, err := s.networkNames()
	var all []*Network
	errs := []error{err}
	for _, name := range names {
		n, err := s.Network(name)
		if errors.As(err, new(*NoNetworkError)) {
			continue // just removed
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, n)
	}
	return all, errors.Join(errs...)
}

// Endpoint returns an endpoint. The error is fs.ErrNotExist if there is none.
func (s Store) Endpoint(network, id string) (*Endpoint, error) {
	e, err := readFile[Endpoint](s.files, s.endpointFile(network, id))
	if err == nil && e.Version > endpointVersion {
		err = &LaterVersionError{What: "endpoint " + id + " of " + network, Version: e.Version}
	}
	return e, err
}

// endpointIDs returns the ids of a network's endpoints, sorted.
func (s Store) endpointIDs(network string) ([]string, error) {
	files, err := os.ReadDir(s.endpointsDir(network))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list endpoints of %s: %w", network, err)
	}
	var ids []string
	for _, f := range files {
		if id, ok := strings.CutSuffix(f.Name(), endpointSuffix); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Endpoints returns the endpoints of a network, sorted by id. Files that can't be read are an
// error beside the others.
func (s Store) Endpoints(network string) ([]*Endpoint, error) {
	return readDir(s.files, s.endpointsDir(network), func() ([]*Endpoint, error) { return s.endpointsIn(network) })
}

// endpointsIn is Endpoints for a directory below STATE/networks.
func (s Store) endpointsIn(network string) ([]*Endpoint, error) {
	ids, err := s.endpointIDs(network)
	var all []*Endpoint
	errs := []error{err}
	for _, id := range ids {
		e, err := s.Endpoint(network, id)
		switch {
		case errors.Is(err, fs.ErrNotExist): // just disconnected
		case err != nil:
			errs = append(errs, err)
		default:
			all = append(all, e)
		}
	}
	return all, errors.Join(errs...)
}

// writeEndpoint writes the file of an endpoint. The error is a *NoNetworkError if its network was
// removed: the directory must not come back.
func (s Store) writeEndpoint(e *Endpoint) error {
	text, err := statedir.EncodeJSON(e)
	if err != nil {
		return fmt.Errorf("encode endpoint of %s: %w", e.Network, err)
	}
	err = statedir.WriteFile(s.endpointFile(e.Network, endpointID(e.Container)), text)
	if errors.Is(err, fs.ErrNotExist) {
		return &NoNetworkError{Name: e.Network}
	}
	return err
}

// freeID returns the smallest number that no network has.
func freeID(all []*Network) (uint32, error) {
	for id := uint32(1); id <= MaxNetworks; id++ {
		if !slices.ContainsFunc(all, func(n *Network) bool { return n.ID == id }) {
			return id, nil
		}
	}
	return 0, fmt.Errorf("the host has %d networks, which is the limit", MaxNetworks)
}
