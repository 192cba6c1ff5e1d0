package find

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// dockers returns the Docker engines in the scope: the one that DOCKER_HOST, the context
// or a configuration selects, or else those of root and of users.
func (s scope) dockers() []asking {
	host, by, err := s.m.dockerHost()
	switch {
	case (err != nil || host != "") && s.other != 0:
		return nil
	case err != nil:
		return []asking{{Docker, failing{err}}}
	case host != "":
		return []asking{{Docker, s.m.at(Docker, host, by)}}
	}
	var all []asking
	if s.has(0) {
		all = append(all, asking{Docker, api{m: s.m, engine: Docker, socket: "/run/docker.sock"}})
	}
	for _, dir := range s.runtimeDirs() {
		all = append(all, asking{Docker, api{m: s.m, engine: Docker, socket: dir.path + "/docker.sock", owner: dir.owner}})
	}
	return all
}

// dockerHost returns the selected address and what selected it, or "".
func (m *machine) dockerHost() (host, by string, err error) {
	if host := m.getenv("DOCKER_HOST"); host != "" {
		return host, "DOCKER_HOST", nil
	}
	dir := m.getenv("DOCKER_CONFIG")
	if dir == "" {
		dir = m.getenv("HOME") + "/.docker"
	}
	name := m.getenv("DOCKER_CONTEXT")
	if name == "" {
		var config struct{ CurrentContext string }
		if err := m.readJSON(dir+"/config.json", m.uid, &config); err != nil && !unreadable(err) {
			return "", "", err
		}
		name = config.CurrentContext
	}
	if name == "" || name == "default" {
		return "", "", nil
	}
	var context struct {
		Endpoints struct{ Docker struct{ Host string } }
	}
	sum := sha256.Sum256([]byte(name))
	err = m.readJSON(dir+"/contexts/meta/"+hex.EncodeToString(sum[:])+"/meta.json", m.uid, &context)
	if err != nil {
		return "", "", fmt.Errorf("read Docker's context %q: %w", name, err)
	}
	return context.Endpoints.Docker.Host, fmt.Sprintf("the context %q", name), nil
}

// unreadable reports whether a file is missing or not accessible, as that of the user
// whose HOME sudo has kept.
func unreadable(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, errForeign)
}

func (m *machine) readJSON(path string, owner int, into any) error {
	text, err := m.readFile(path, owner)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// at returns the engine at an address. Only unix:// is certain to be this machine.
func (m *machine) at(engine, host, by string) source {
	path, local := strings.CutPrefix(host, "unix://")
	if !local || !filepath.IsAbs(path) {
		return failing{fmt.Errorf("%s is %s: containers there have no namespaces on this machine (only unix:///PATH is local)", by, host)}
	}
	return api{m: m, engine: engine, socket: path, chosen: true}
}

// podmans returns Podman's sources: its service if one was selected, or its monitors and
// files.
func (s scope) podmans(ms *monitors) []asking {
	switch host := s.m.getenv("CONTAINER_HOST"); {
	case host != "" && s.other != 0:
		return nil
	case host != "":
		return []asking{{Podman, s.m.at(Podman, host, "CONTAINER_HOST")}}
	}
	return []asking{{Podman, podman{s, ms}}}
}
