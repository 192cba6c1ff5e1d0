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

// dockers are the Docker engines in the scope: the one that DOCKER_HOST, the context or a
// configuration chooses, or else that of root and those of users.
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

// unreadable: a file is not there, or not for us, as that of the user whose HOME sudo left.
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

// at is an engine at an address. Only unix:// is this machine for certain.
func (m *machine) at(engine, host, by string) source {
	path, local := strings.CutPrefix(host, "unix://")
	if !local || !filepath.IsAbs(path) {
		return failing{fmt.Errorf("%s is %s: what runs there has no namespaces here (only unix:///PATH is local)", by, host)}
	}
	return api{m: m, engine: engine, socket: path, chosen: true}
}

// podmans are Podman's ways to be asked: its service, if one was chosen, or its
// monitors and files.
func (s scope) podmans(ms *monitors) []asking {
	switch host := s.m.getenv("CONTAINER_HOST"); {
	case host != "" && s.other != 0:
		return nil
	case host != "":
		return []asking{{Podman, s.m.at(Podman, host, "CONTAINER_HOST")}}
	}
	return []asking{{Podman, podman{s, ms}}}
}
