package main_test

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// hostBlocks are the blocks of a page that show what is typed on several hosts: lines "HOST$ COMMAND".
var hostBlocks = regexp.MustCompile("(?ms)^```console hosts\n(.*?)^```")

// TestReadme types what README.md shows, on three hosts, and sees whether the containers reach each other.
func TestReadme(t *testing.T) {
	page, err := os.ReadFile("../../README.md")
	must(t, err)
	block := hostBlocks.FindStringSubmatch(string(page))
	if block == nil {
		t.Fatal("README.md has no block for hosts")
	}
	c := newCluster(t, 3)
	must(t, unix.Mount("tmpfs", "/run", "tmpfs", 0, "")) // of the lab alone
	t.Cleanup(func() { unix.Unmount("/run", unix.MNT_DETACH) })
	must(t, os.MkdirAll("/run/netns", 0o755))
	containers := map[string]*container{}
	token := ""
	for _, line := range strings.Split(strings.TrimSpace(block[1]), "\n") {
		name, command, typed := strings.Cut(line, "$ ")
		if !typed {
			if line != strings.ReplaceAll(token, tokenIn(token), "TOKEN") {
				t.Errorf("README.md shows %q, and the output is %q", line, token)
			}
			continue
		}
		h := c.hosts[name[0]-'a']
		if i := strings.Index(command, "connect web "); i >= 0 {
			k := h.named(command[i+len("connect web "):])
			containers[k.name] = k
			c.eventually("network", func() error { _, err := os.Stat(h.state + "/networks/web"); return err })
		}
		out, err := h.typed(strings.ReplaceAll(strings.TrimPrefix(command, "sudo "), "TOKEN", tokenIn(token)))
		must(t, err)
		if strings.HasSuffix(command, " token") {
			token = strings.TrimSpace(out)
		}
	}
	for _, k := range containers {
		k.serve()
		s, err := k.host.status()
		must(t, err)
		if len(s.Hosts) != 3 {
			t.Errorf("host %s sees %+v", k.host.name, s.Hosts)
		}
	}
	for _, k := range containers {
		for _, o := range containers {
			c.eventually("name of "+o.name, func() error {
				got, err := k.resolve(o.name)
				if err == nil {
					o.addr = netip.MustParseAddr(got[0])
					err = k.reaches(o)
				}
				return err
			})
		}
	}
}

// tokenIn returns the token of a line that cleat-node has printed.
func tokenIn(line string) string { return line[strings.LastIndexByte(line, ' ')+1:] }

// named makes a container that is a named network namespace.
func (h *host) named(name string) *container {
	h.c.t.Helper()
	k := h.newContainer(name)
	must(h.c.t, k.NS.Pin(filepath.Join("/run/netns", name)))
	return k
}

// typed runs a command line on the host, which has its name as its host name.
func (h *host) typed(line string) (string, error) {
	script := "hostname " + h.name + " && exec " + line
	cmd := exec.CommandContext(h.c.t.Context(), "unshare", "--uts", "sh", "-c", script)
	cmd.Env = append(os.Environ(), "CLEAT_STATE_DIR="+h.state, "PATH="+h.programs+":"+os.Getenv("PATH"))
	cmd.Stderr = os.Stderr
	var out []byte
	err := h.NS.Do(func() (err error) {
		out, err = cmd.Output()
		return err
	})
	return string(out), err
}
