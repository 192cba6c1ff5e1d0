package docker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The daemon's API tells what the plug-in protocol does not: what a container is called. It is never
// asked while the daemon waits for an answer of ours, because it may hold locks meanwhile.

// defaultAPI is where daemons listen by default.
const defaultAPI = "/run/docker.sock"

// apiOf returns the path of the socket at which a daemon serves its API: one that the process listens at.
func apiOf(pid int) string {
	if pid == 0 {
		return defaultAPI
	}
	root := fmt.Sprintf("/proc/%d/root", pid)
	if sameDir("/", root) {
		root = ""
	}
	paths := slices.DeleteFunc(listening(pid), func(path string) bool { return rank(path) == notAPI })
	if len(paths) == 0 {
		return root + defaultAPI
	}
	return root + slices.MinFunc(paths, func(a, b string) int { return rank(a) - rank(b) })
}

// notAPI is the rank of sockets that serve something else.
const notAPI = 2

// rank orders sockets of a daemon by how probably they serve its API: libnetwork and metrics have some, too.
func rank(path string) int {
	switch {
	case filepath.Base(path) == "docker.sock":
		return 0
	case strings.Contains(path, "/libnetwork/"), strings.HasSuffix(path, "/metrics.sock"), strings.Contains(path, "/plugins/"), strings.Contains(path, "containerd"):
		return notAPI
	}
	return 1
}

func sameDir(a, b string) bool {
	one, err := os.Stat(a)
	other, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(one, other)
}

// listening returns the paths of the Unix sockets at which a process listens.
func listening(pid int) (paths []string) {
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return nil
	}
	own := map[string]bool{}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil {
			if inode, ok := strings.CutPrefix(target, "socket:["); ok {
				own[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	table, err := os.Open(fmt.Sprintf("/proc/%d/net/unix", pid))
	if err != nil {
		return nil
	}
	defer table.Close()
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		// Num RefCount Protocol Flags Type St Inode Path
		f := strings.Fields(lines.Text())
		const fields, accepts = 8, 1 << 16 // __SO_ACCEPTCON, include/linux/net.h
		if len(f) < fields {
			continue
		}
		flags, err := strconv.ParseUint(f[3], 16, 32)
		if err == nil && flags&accepts != 0 && own[f[6]] && strings.HasPrefix(f[7], "/") {
			paths = append(paths, f[7])
		}
	}
	return paths
}

// daemon is a client of a daemon's API.
type daemon struct{ client *http.Client }

func dialDaemon(socket string) *daemon {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &daemon{&http.Client{Transport: &http.Transport{DialContext: dial}}}
}

func (d *daemon) close() { d.client.CloseIdleConnections() }

// apiTimeout bounds a request. A container that is being started is inspected when it has started.
const apiTimeout = 2 * time.Minute

// maxAnswer bounds an answer. A container on a network takes some 300 bytes of one.
const maxAnswer = 64 << 20

var errNotThere = errors.New("the daemon has none of this ID")

func (d *daemon) get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker"+path, nil)
	if err != nil {
		return err
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(into)
	case http.StatusNotFound:
		return errNotThere
	}
	return fmt.Errorf("GET %s: %s", path, resp.Status)
}

// member is a container on a network, in the answer to GET /networks/ID.
type member struct {
	Name       string
	EndpointID string
}

// members returns the containers on a network by ID. While one is being connected, its ID begins with
// "ep-".
func (d *daemon) members(ctx context.Context, network string) (map[string]member, error) {
	var n struct{ Containers map[string]member }
	err := d.get(ctx, "/networks/"+network, &n)
	return n.Containers, err
}

// inspected is the answer to GET /containers/ID/json.
type inspected struct {
	Name            string
	ResolvConfPath  string
	State           struct{ Pid int }
	NetworkSettings struct {
		Networks map[string]struct {
			EndpointID string
			Aliases    []string
			DNSNames   []string
		}
	}
}

func (d *daemon) inspect(ctx context.Context, container string) (*inspected, error) {
	var i inspected
	if err := d.get(ctx, "/containers/"+container+"/json", &i); err != nil {
		return nil, err
	}
	return &i, nil
}
