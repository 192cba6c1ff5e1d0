package main_test

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cleat/internal/program"
	"cleat/lab"
	"cleat/lab/labtest"
	"cleat/overlay/control"

	"golang.org/x/sys/unix"
)

// engineGroup returns the control group of the containers of a host's engines.
func (h *host) engineGroup() string { return "cleat-engines-span-" + h.name }

// boxProgram is all that containers of engines have. It serves echoPort, and answers with the client's address.
const boxProgram = "cleat/cli/testdata/box"

// needEngines skips a test if this machine can't run engines: programs are what they need. It reports whether the test
// runs in a lab that root has made. If not, it has run the test in such a lab.
func needEngines(t *testing.T, programs ...string) bool {
	t.Helper()
	lab.Need(t)
	for _, p := range append(programs, "unshare", "nsenter", "bash", "tar") {
		if _, err := program.Find(p); err != nil {
			t.Skipf("there is no %s on this machine", p)
		}
	}
	return labtest.InRoot(t)
}

// becomeEngineHost gives a host directories, a mount and a PID namespace of its own, in which all of its programs
// run from now on.
func (h *host) becomeEngineHost() {
	h.c.t.Helper()
	ready := filepath.Join(h.c.dir, h.name+".ready")
	cmd := exec.CommandContext(h.c.t.Context(), "unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "testdata/enginehost.sh", filepath.Join(h.c.programs, "box"), ready)
	cmd.Env = engineEnv()
	log, err := os.Create(filepath.Join(h.c.dir, h.name+".log"))
	must(h.c.t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	must(h.c.t, h.NS.Do(cmd.Start))
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	h.c.t.Cleanup(func() {
		h.end()
		cmd.Process.Kill() // and with it the first process
		<-ended
		h.removeGroups()
	})
	h.c.eventually(h.name+" has directories of its own", func() error {
		select {
		case <-ended:
			text, _ := os.ReadFile(log.Name())
			h.c.t.Fatalf("host %s: %s", h.name, text)
		default:
		}
		_, err := os.Stat(ready)
		return err
	})
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
	must(h.c.t, err)
	h.init, err = strconv.Atoi(strings.TrimSpace(string(children)))
	must(h.c.t, err)
	h.state = h.path("/var/lib/cleat")
}

// path returns the path of a file of a host with engines, for programs that are not on it.
func (h *host) path(file string) string { return fmt.Sprintf("/proc/%d/root%s", h.init, file) }

// engineEnv is the environment without what would lead engines to the machine's own.
func engineEnv() []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch first, _, _ := strings.Cut(name, "_"); first {
		case "DOCKER", "CONTAINER", "CONTAINERS", "XDG", "PODMAN", "STORAGE", "CLEAT":
		default:
			env = append(env, v)
		}
	}
	return env
}

// on returns a command for a host with engines. Its mount namespace has no CLEAT_STATE_DIR, because Podman's
// cleanup has no environment.
func (h *host) on(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(h.init), "--mount", "--pid", "--wdns=/run", "--", path}, args...)...)
	cmd.Env = append(engineEnv(), "PATH="+h.c.programs+":"+program.SearchPath(), "DOCKER_CONFIG=/run", "DOCKER_HOST=unix:///run/docker.sock")
	return cmd
}

// must runs a program of a host, which must succeed.
func (h *host) must(args ...string) string {
	h.c.t.Helper()
	out, err := h.run(h.c.t.Context(), args...)
	must(h.c.t, err)
	return out
}

// startDocker starts a daemon, which knows the network web of Cleat.
func (h *host) startDocker(options ...string) {
	h.c.t.Helper()
	script, err := filepath.Abs("testdata/dockerd.sh")
	must(h.c.t, err)
	h.must(append([]string{"bash", script, h.engineGroup()}, options...)...)
}

// podman are the first words of a command of Podman.
var podman = []string{"podman", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none", "--log-level", "error"}

// setUpPodman makes cleat the netavark of Podman.
func (h *host) setUpPodman(network string) {
	h.c.t.Helper()
	must(h.c.t, os.Symlink(filepath.Join(h.c.programs, "cleat-cni"), h.path("/run/helpers/netavark")))
	conf := "[engine]\nhelper_binaries_dir = [\"/run/helpers\", \"/usr/lib/podman\", \"/usr/libexec/podman\"]\n[network]\nnetwork_backend = \"netavark\"\n"
	must(h.c.t, os.WriteFile(h.path("/etc/containers/containers.conf"), []byte(conf), 0o644))
	must(h.c.t, os.WriteFile(h.path("/etc/containers/networks/"+network+".json"), []byte(h.cleat("net", "podman-conf", network)), 0o644))
}

// removeGroups removes the control groups that engines leave, once their processes are gone.
func (h *host) removeGroups() {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var left []string // innermost first
		filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && strings.Contains(path, "/"+h.engineGroup()) {
				left = append([]string{path}, left...)
			}
			return nil
		})
		if len(left) == 0 {
			return
		}
		for _, path := range left {
			unix.Rmdir(path) // one that still has processes is removed next time
		}
		if time.Now().After(deadline) {
			h.c.t.Fatalf("control groups are left: %q", left)
		}
	}
}

// engineContainer is a container of an engine, or of CNI.
type engineContainer struct {
	name string
	addr netip.Addr
	exec func(args ...string) (string, error) // runs box in it
}

// asks returns an error unless the container reaches another one by its name, which sees its address.
func (k *engineContainer) asks(to *engineContainer) error {
	got, err := k.exec("ask", fmt.Sprintf("%s:%d", to.name, echoPort))
	if err == nil && got != k.addr.String() {
		err = fmt.Errorf("the answer is %q, want %s", got, k.addr)
	}
	if err != nil {
		return fmt.Errorf("%s asks %s: %w", k.name, to.name, err)
	}
	return nil
}

// dockerRun starts a container of Docker.
func (h *host) dockerRun(name string, options ...string) *engineContainer {
	h.c.t.Helper()
	h.must(append(append([]string{"docker", "run", "--detach", "--name", name, "--network", "web"}, options...), "image", "/box", "serve", strconv.Itoa(echoPort))...)
	return h.known(&engineContainer{name: name, exec: func(args ...string) (string, error) {
		return h.run(h.c.t.Context(), append([]string{"docker", "exec", name, "/box"}, args...)...)
	}})
}

// podmanRun starts a container of Podman.
func (h *host) podmanRun(name string, options ...string) *engineContainer {
	h.c.t.Helper()
	words := append(append([]string{}, podman...), "run", "--detach", "--name", name, "--network", "web", "--cgroup-parent", "/"+h.engineGroup())
	h.must(append(append(words, options...), "--rootfs", "/run/rootfs", "/box", "serve", strconv.Itoa(echoPort))...)
	return h.known(&engineContainer{name: name, exec: func(args ...string) (string, error) {
		return h.run(h.c.t.Context(), append(append(append([]string{}, podman...), "exec", name, "/box"), args...)...)
	}})
}

// cniRun has CNI connect a namespace.
func (h *host) cniRun(name string) *engineContainer {
	h.c.t.Helper()
	k := h.newContainer(name)
	must(h.c.t, h.cni("ADD", k, "web"))
	labtest.Serve(h.c.t, k.NS, fmt.Sprintf(":%d", echoPort), func(c net.Conn) {
		at, err := netip.ParseAddrPort(c.RemoteAddr().String())
		if err == nil {
			fmt.Fprintf(c, "%s\n", at.Addr().Unmap())
		}
	})
	return h.known(&engineContainer{name: name, exec: func(args ...string) (string, error) {
		if args[0] != "ask" {
			return "", fmt.Errorf("a namespace can't %s", args[0])
		}
		name, _, _ := strings.Cut(args[1], ":")
		found, err := k.resolve(name)
		if err != nil {
			return "", err
		}
		a, err := netip.ParseAddr(found[0])
		if err != nil {
			return "", err
		}
		got, err := ask(k.NS, a)
		return strings.TrimSpace(got), err
	}})
}

// known waits until all hosts know a container of this host, and sets its address.
func (h *host) known(k *engineContainer) *engineContainer {
	h.c.t.Helper()
	for _, other := range h.c.hosts {
		h.c.eventually(other.name+" knows "+k.name, func() error {
			host, addr, err := other.find(k.name)
			if err == nil && host != h.name {
				err = fmt.Errorf("it is on host %q", host)
			}
			k.addr = addr
			return err
		})
	}
	return k
}

// find returns the host and the address of a container by its name on the network, as this host knows it.
func (h *host) find(name string) (on string, a netip.Addr, err error) {
	p, err := control.New(h.state).Picture(h.c.t.Context(), true)
	if err != nil {
		return "", a, err
	}
	for _, k := range p.Containers {
		if len(k.Names) > 0 && k.Names[0] == name && len(k.Addresses) > 0 {
			return k.Host, k.Addresses[0], nil
		}
	}
	return "", a, fmt.Errorf("host %s knows no container %s", h.name, name)
}

// forgotten waits until no host knows a container any more.
func (c *cluster) forgotten(name string) {
	c.t.Helper()
	for _, h := range c.hosts {
		c.eventually(h.name+" forgets "+name, func() error {
			if on, a, err := h.find(name); err == nil {
				return fmt.Errorf("it is on %s at %s", on, a)
			}
			return nil
		})
	}
}
