package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"cleat/internal/program"
	"cleat/internal/statedir"
	"cleat/overlay"
	"cleat/overlay/registry"
	"cleat/tunnel/control"
	"cleat/tunnel/secure"
	"cleat/tunnel/spec"
)

// tunnelDevices is how devices of tunnels to other hosts begin. The tunnels have the same names.
const tunnelDevices = "cleat-t"

// isTunnel reports whether the device of a tunnel to another host can have a name.
func isTunnel(name string) bool {
	number, is := strings.CutPrefix(name, tunnelDevices)
	_, err := strconv.ParseUint(number, 10, 8)
	return is && err == nil
}

// Inner addresses of tunnels' devices: nobody sends to them. They are the sources of ICMP errors (RFC 7600).
const (
	inner4 = "192.0.0.8/32"
	inner6 = "fd63:6c65:6174::8/128"
)

// tunnels are this host's ends of tunnels to others, which join hosts with several uplinks. Each is a process of its
// own, `cleat tunnel up`, and goes on when this one ends.
//
//	DIR/key          the private key of all ends
//	DIR/DEVICE.yaml  a tunnel file
//	DIR/DEVICE.log   what the tunnel says
type tunnels struct {
	dir     string
	devices []string // this host's uplinks
	log     func(string, ...any)
	stale   func() // a tunnel works, or does not any more
	kick    chan struct{}
	loaded  map[string]string // tunnel files that tunnels have, by device; only run uses it

	mu     sync.Mutex
	wanted map[string]tunnelEnd   // by host; nil until it is known
	states map[string]tunnelState // by host
	begun  map[string]bool        // devices whose tunnel this process has started, and which has not ended
	ends   map[string]string      // why tunnels that this process has started ended the last time, by device, until they run
}

// tunnelEnd is this host's end of a tunnel to another one.
type tunnelEnd struct {
	device string
	text   []byte // of the tunnel file
}

// tunnelState is what is known of a tunnel.
type tunnelState struct {
	up          bool
	live, paths int
	problem     string
}

func (s tunnelState) String() string {
	if s.live == s.paths {
		return fmt.Sprintf("all %d uplinks work", s.paths)
	}
	return fmt.Sprintf("%d of %d uplinks work", s.live, s.paths)
}

func newTunnels(dir string, devices []string, log func(string, ...any), stale func()) *tunnels {
	return &tunnels{dir: dir, devices: devices, log: log, stale: stale, kick: make(chan struct{}, 1), loaded: map[string]string{}, begun: map[string]bool{}, ends: map[string]string{}, states: map[string]tunnelState{}}
}

func (t *tunnels) path(name string) string { return filepath.Join(t.dir, name) }

// TunnelKey implements overlay.Tunneler.
func (d *dataplane) TunnelKey() (string, error) { return d.tunnels.publicKey() }

// publicKey returns the public key of this host's ends. It makes a key if there is none.
func (t *tunnels) publicKey() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	path := t.path("key")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return t.newKey(path)
	}
	if err != nil {
		return "", fmt.Errorf("read the key of tunnels: %w", err)
	}
	key, err := secure.ParsePrivateKey(strings.TrimSpace(string(text)))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return key.Public().String(), nil
}

func (t *tunnels) newKey(path string) (string, error) {
	key, err := secure.GenerateKey()
	if err == nil {
		err = os.MkdirAll(t.dir, 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("make a key of tunnels: %w", err)
	}
	if err := statedir.WriteSecret(path, []byte(key.Text()+"\n")); err != nil {
		return "", err
	}
	return key.Public().String(), nil
}

// endOf returns this host's end of the tunnel to another one. ok is false if there is none, or if the hosts do not
// know enough of each other yet.
func endOf(self, other registry.Host, devices []string, sources []netip.Prefix) (end tunnelEnd, ok bool) {
	local, remote := self.TunnelPorts[other.Name], other.TunnelPorts[self.Name]
	if !overlay.HasTunnel(self, other) || local == 0 || remote == 0 || other.TunnelKey == "" {
		return end, false
	}
	mine, theirs := self.Uplinks, other.Uplinks
	if len(mine) == 0 {
		mine = []netip.Addr{self.Address}
	}
	if len(theirs) == 0 {
		theirs = []netip.Addr{other.Address}
	}
	end.device = fmt.Sprintf("%s%d", tunnelDevices, local-overlay.FirstTunnelPort)
	addresses := []string{inner4}
	if slices.ContainsFunc(sources, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		addresses = append(addresses, inner6)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# The tunnel to host %s. cleat-node writes this file.\n", other.Name)
	fmt.Fprintf(&b, "name: %s\ndevice: %[1]s\naddress: [%s]\nsources: [%s]\nport: %d\n", end.device, quoted(addresses), quoted(sources), local)
	fmt.Fprintf(&b, "key: {private: key, peer: %q}\npaths:\n", other.TunnelKey)
	for i := range min(max(len(mine), len(theirs)), spec.MaxPaths) {
		from, to := mine[i%len(mine)], netip.AddrPortFrom(theirs[i%len(theirs)], remote)
		fmt.Fprintf(&b, "  - {name: uplink%d, local: %q, port: %d, remote: %q", i, from, local, to)
		if len(devices) == len(mine) { // also the way there
			fmt.Fprintf(&b, ", device: %q", devices[i%len(devices)])
		}
		b.WriteString("}\n")
	}
	end.text = b.Bytes()
	return end, true
}

// quoted returns texts in quotation marks, with commas between them.
func quoted[T any](all []T) string {
	texts := make([]string, len(all))
	for i, one := range all {
		texts[i] = fmt.Sprintf("%q", fmt.Sprint(one))
	}
	return strings.Join(texts, ", ")
}

// set sets which tunnels there are to be.
func (t *tunnels) set(ctx context.Context, s overlay.State) {
	wanted := map[string]tunnelEnd{}
	for _, other := range s.Hosts {
		var sources []netip.Prefix
		for _, n := range s.Networks {
			sources = append(sources, n.Remote[other.Name]...)
		}
		slices.SortFunc(sources, netip.Prefix.Compare)
		if choice, err := s.Between(other); err != nil || choice != overlay.Auto {
			continue
		}
		if end, ok := endOf(s.Self, other, t.devices, sources); ok {
			wanted[other.Name] = end
		}
	}
	t.mu.Lock()
	known := maps.Clone(t.states)
	t.mu.Unlock()
	asked := maps.Clone(wanted)
	maps.DeleteFunc(asked, func(host string, _ tunnelEnd) bool { _, ok := known[host]; return ok })
	maps.Copy(known, askAll(ctx, asked))
	t.mu.Lock()
	t.wanted = wanted
	maps.Copy(known, t.states) // which run may have changed
	t.states = known
	t.mu.Unlock()
	signal(t.kick)
}

// to returns the device of the tunnel to a host, and its state. There is none if the device is "".
func (t *tunnels) to(host string) (string, tunnelState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end, ok := t.wanted[host]
	if !ok {
		return "", tunnelState{}
	}
	return end.device, t.states[host]
}

// run starts, changes and ends tunnels, until ctx ends. The tunnels stay. It begins with the first call of set: until
// then nobody knows which tunnels of an earlier node are wanted.
func (t *tunnels) run(ctx context.Context) {
	const look = time.Second
	var failed error // why tunnels were not ended the last time
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.kick:
		case <-time.After(look):
		}
		t.mu.Lock()
		wanted := maps.Clone(t.wanted)
		t.mu.Unlock()
		if wanted == nil {
			continue
		}
		states := map[string]tunnelState{}
		for host, end := range wanted {
			states[host] = t.look(ctx, end)
		}
		err := t.endOthers(ctx, wanted)
		if err != nil && ctx.Err() == nil && (failed == nil || err.Error() != failed.Error()) {
			t.log("%v", err)
		}
		failed = err
		t.mu.Lock()
		before := t.states
		t.states = states
		t.mu.Unlock()
		for host, s := range states {
			if s.problem != "" && s.problem != before[host].problem {
				t.log("tunnel to host %s: %s", host, s.problem)
			}
		}
		if !maps.Equal(before, states) {
			t.stale()
		}
	}
}

// look makes a tunnel as wanted, and returns how it is.
func (t *tunnels) look(ctx context.Context, end tunnelEnd) (s tunnelState) {
	fail := func(err error) tunnelState { return tunnelState{problem: err.Error()} }
	path := t.path(end.device + ".yaml")
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	if !bytes.Equal(old, end.text) {
		if err := statedir.WriteSecret(path, end.text); err != nil {
			return fail(err)
		}
	}
	c, err := control.Dial(ctx, end.device)
	if errors.Is(err, control.ErrNotRunning) {
		if err := t.start(end, path); err != nil {
			return fail(err)
		}
		return tunnelState{problem: t.whyEnded(end.device)}
	}
	if err != nil {
		return fail(err)
	}
	defer c.Close()
	t.runs(end.device)
	if t.loaded[end.device] != string(end.text) {
		if _, err := c.Reload(ctx); err != nil {
			t.log("tunnel %s starts again: %v", end.device, err)
			if err := errors.Join(c.Stop(ctx), c.WaitGone(ctx)); err != nil {
				return fail(err)
			}
			return s // the next look starts it
		}
		t.loaded[end.device] = string(end.text)
	}
	return stateOf(ctx, c)
}

// askFor is how long set waits for tunnels, which answer within milliseconds. Other ways to hosts wait for it.
const askFor = 2 * time.Second

// askAll returns how tunnels are that may run already, by host: nothing changes then. One that hangs delays no other.
func askAll(ctx context.Context, all map[string]tunnelEnd) map[string]tunnelState {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	states := map[string]tunnelState{}
	for host, end := range all {
		asking.Go(func() {
			s := ask(ctx, end.device)
			mu.Lock()
			defer mu.Unlock()
			states[host] = s
		})
	}
	asking.Wait()
	return states
}

// ask returns how a tunnel is, if it runs.
func ask(ctx context.Context, device string) tunnelState {
	c, err := control.Dial(ctx, device)
	if err != nil {
		return tunnelState{} // a look says why
	}
	defer c.Close()
	return stateOf(ctx, c)
}

func stateOf(ctx context.Context, c *control.Client) tunnelState {
	got, err := c.Status(ctx)
	if err != nil {
		return tunnelState{problem: err.Error()}
	}
	s := tunnelState{up: got.Up, paths: len(got.Paths)}
	for _, p := range got.Paths {
		if p.State == control.Live {
			s.live++
		}
	}
	return s
}

// start starts a tunnel in a session of its own, unless it is about to begin or to end.
func (t *tunnels) start(end tunnelEnd, path string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun[end.device] {
		return nil
	}
	cleat, err := program.FindBeside("cleat")
	if err != nil {
		return err
	}
	log, err := os.OpenFile(t.path(end.device+".log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(context.Background(), cleat, "tunnel", "up", path)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr, cmd.Dir = log, log, &syscall.SysProcAttr{Setsid: true}, "/"
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a tunnel: %w", err)
	}
	t.begun[end.device], t.loaded[end.device] = true, string(end.text)
	go func() {
		err := cmd.Wait()
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.begun, end.device)
		if err != nil {
			t.ends[end.device] = fmt.Sprintf("`cleat tunnel up` has ended: %v; its log: %s", err, log.Name())
		}
	}()
	return nil
}

func (t *tunnels) whyEnded(device string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ends[device]
}

// runs notes that a tunnel runs.
func (t *tunnels) runs(device string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.ends, device)
}

// endOthers ends the tunnels that are not wanted any more. One that is about to begin is left for the next time.
func (t *tunnels) endOthers(ctx context.Context, wanted map[string]tunnelEnd) error {
	var errs []error
	files, _ := filepath.Glob(t.path(tunnelDevices + "*.yaml"))
	for _, path := range files {
		device := strings.TrimSuffix(filepath.Base(path), ".yaml")
		if slices.ContainsFunc(slices.Collect(maps.Values(wanted)), func(e tunnelEnd) bool { return e.device == device }) {
			continue
		}
		c, err := control.Dial(ctx, device)
		if err == nil {
			err = errors.Join(c.Stop(ctx), c.WaitGone(ctx))
			c.Close()
		} else if errors.Is(err, control.ErrNotRunning) && !t.isBegun(device) {
			err = nil
		}
		if err == nil {
			err = errors.Join(os.Remove(path), removeFile(t.path(device+".log")))
		}
		if err != nil && !errors.Is(err, control.ErrNotRunning) {
			errs = append(errs, fmt.Errorf("end tunnel %s: %w", device, err))
		}
	}
	return errors.Join(errs...)
}

func (t *tunnels) isBegun(device string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.begun[device]
}

// remove ends all tunnels, and removes their files.
func (t *tunnels) remove(ctx context.Context) error {
	if err := t.endOthers(ctx, nil); err != nil {
		return err
	}
	return os.RemoveAll(t.dir)
}
