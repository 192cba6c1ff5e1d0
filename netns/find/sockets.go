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

// dockers are the Docker engines of this machine: the one that DOCKER_HOST, the
// context or a configuration chooses, or else that of root and those of users.
func (m *machine) dockers() []asking {
	host, by, err := m.dockerHost()
	if err != nil {
		return []asking{{Docker, failing{err}}}
	}
	if host != "" {
		return []asking{{Docker, m.at(Docker, host, by)}}
	}
	all := []asking{{Docker, api{m, Docker, "/run/docker.sock"}}}
	for _, dir := range m.runtimeDirs() {
		all = append(all, asking{Docker, api{m, Docker, dir + "/docker.sock"}})
	}
	return all
}

// dockerHost is the address that somebody chose, and by what; "" if nobody did.
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
		if err := m.readJSON(dir+"/config.json", &config); err != nil && !unreadable(err) {
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
	err = m.readJSON(dir+"/contexts/meta/"+hex.EncodeToString(sum[:])+"/meta.json", &context)
	if err != nil {
		return "", "", fmt.Errorf("read Docker's context %q: %w", name, err)
	}
	return context.Endpoints.Docker.Host, fmt.Sprintf("the context %q", name), nil
}

// unreadable: a file is not there, or not for us.
func unreadable(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
}

func (m *machine) readJSON(path string, into any) error {
	text, err := m.readFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// at is an engine at an address. Only unix:// is this machine for certain.
func (m *machine) at(engine, host, by string) source {
	path, local := strings.CutPrefix(host, "unix://")
	if !local || !filepath.IsAbs(path) {
		return failing{fmt.Errorf("%s is %s: what runs there has no namespaces here (only unix:///PATH is local)", by, host)}
	}
	return api{m, engine, path}
}

// podmans are Podman's ways to be asked: its service, if one was chosen, or its
// monitors and files.
func (m *machine) podmans(ms *monitors) []asking {
	if host := m.getenv("CONTAINER_HOST"); host != "" {
		return []asking{{Podman, m.at(Podman, host, "CONTAINER_HOST")}}
	}
	return []asking{{Podman, podman{m, ms}}}
}
