package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cleat/cli/complete"
	"cleat/cli/hint"
	"cleat/internal/buildinfo"
	"cleat/internal/sys"
	"cleat/network/attach"
	"cleat/overlay"
	"cleat/overlay/control"
	"cleat/overlay/registry"
	"cleat/overlay/trust"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

type upFlags struct {
	token      string
	name       string
	address    string
	port       uint16
	metrics    string
	foreground bool
	bgp        bgpFlags
	etcd       etcdFlags
	dataplane  string
	uplinks    []string
	encrypt    bool
}

func newUp(dataplane NewDataplane) *cobra.Command {
	f := &upFlags{}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "take part in a cluster of hosts",
		Long: `Makes this host take part in its cluster. A host that belongs to none begins a new
one, or joins that of --token. It returns when the host takes part; a process
in the background goes on. Networks and containers don't depend on that process:
without it they only miss what other hosts change.

--dataplane says how packets travel between hosts: in VXLAN ("vxlan"), in Geneve
("geneve"), encrypted ("wireguard"), as they are to hosts of the same segment
("routes"), or so where that works, and in VXLAN elsewhere ("auto", the default).
With the first host it is for the whole cluster, and otherwise for this host. Of
two hosts that differ, "wireguard" prevails over "geneve", that over "vxlan", that
over "routes", and that over "auto".

--encrypt makes WireGuard the only way between all hosts of the cluster. A cluster
that exists begins to encrypt when all hosts have keys, and never stops.

--uplinks is for hosts with several links to the others: tunnels use all of them
at once. Name them in the same order on all hosts.

--etcd puts the registry into an etcd that you run, instead of hosts of the
cluster. Give it to the first host and to one or two others: they relay the
rest, which joins by --token alone. Its files are read again for each connection.`,
		Example: `  # a new cluster
  cleat-node up

  # join one
  cleat-node up --token cleat1-…

  # at another address than that of the default route
  cleat-node up --address 192.0.2.1

  # with the registry in an etcd of your own
  cleat-node up --etcd https://192.0.2.9:2379 --etcd-ca ca.pem --etcd-cert host.pem --etcd-key host.key

  # over two links at once
  cleat-node up --uplinks eth0,eth1

  # a new cluster that encrypts everything between hosts
  cleat-node up --encrypt

  # with figures for Prometheus at http://192.0.2.1:7792/metrics
  cleat-node up --metrics 192.0.2.1:7792`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, dataplane) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.token, "token", "", "join the cluster in which \"cleat-node token\" printed `TOKEN`")
	flags.StringVar(&f.name, "name", "", "`NAME` of this host in the cluster (default: its host name)")
	flags.StringVar(&f.address, "address", "", "`ADDRESS` of this host at which the others reach it")
	flags.Uint16Var(&f.port, "port", overlay.DefaultPort, "TCP `PORT` at which the others reach it")
	flags.StringVar(&f.dataplane, "dataplane", "", "how hosts reach each other's containers: `WAY` is "+overlay.Dataplanes())
	flags.StringSliceVar(&f.uplinks, "uplinks", nil, "join this host and others by tunnels over all of `DEVICES`, separated by commas; none: over none (default: as before)")
	flags.BoolVar(&f.encrypt, "encrypt", false, "encrypt everything between hosts of the cluster, by WireGuard")
	flags.StringVar(&f.metrics, "metrics", "", "`ADDRESS:PORT` at which Prometheus gets this host's figures; none: nowhere (default: as before)")
	flags.BoolVar(&f.foreground, "foreground", false, "don't go into the background")
	complete.Words(cmd, "dataplane", overlay.Ways()...)
	f.bgp.add(flags)
	f.etcd.add(flags)
	return cmd
}

func (f *upFlags) run(cmd *cobra.Command, dataplane NewDataplane) error {
	if err := overlay.CheckDataplane(f.dataplane); err != nil {
		return hint.With(hint.Usagef("--dataplane: %w", err), "e.g. --dataplane auto")
	}
	if cmd.Flags().Changed("encrypt") && !f.encrypt {
		return hint.With(hint.Usagef("--encrypt=false: a cluster that encrypts does not stop"), "leave it out")
	}
	if f.encrypt {
		if err := overlay.CheckEncrypted(f.dataplane); err != nil {
			return hint.With(hint.Usagef("--encrypt: %w", err), "leave out --dataplane")
		}
	}
	if err := overlay.CheckPort(f.port); err != nil {
		return hint.With(hint.Usagef("--port: %w", err), fmt.Sprintf("e.g. --port %d", overlay.DefaultPort))
	}
	if os.Geteuid() != 0 {
		return hint.With(errors.New("networks of hosts need root"), "sudo cleat-node up")
	}
	store, err := attach.OpenStore("")
	if err != nil {
		return err
	}
	dir := control.Dir(store.Path())
	settings, err := overlay.Load(dir)
	if err != nil {
		return err
	}
	if err := f.checkUplinks(settings); err != nil {
		return err
	}
	c := control.New(store.Path())
	if _, err := c.Status(cmd.Context()); err == nil && !f.foreground {
		return hint.With(errors.New("cleat-node runs on this host already"), "`cleat-node status` shows what it does, and `cleat-node down` ends it")
	}
	if err := errors.Join(f.checkMetrics(), f.etcd.check()); err != nil {
		return err
	}
	routing, err := f.bgp.parse()
	if err != nil {
		return err
	}
	resumes := settings != nil && (f.token == "" || !settings.Removed)
	if f.encrypt && f.token != "" {
		return hint.With(hint.Usagef("--encrypt is for the first host of a cluster, or one that belongs to it"), "leave out --encrypt: the cluster of --token encrypts or does not")
	}
	if err := f.canUse(store, dataplane); err != nil {
		return err
	}
	if !resumes {
		if settings, err = f.begin(cmd.Context(), store, dir, dataplane); err != nil {
			return err
		}
	} else if f.token != "" || f.name != "" || f.address != "" || cmd.Flags().Changed("port") && f.port != settings.Port {
		return hint.With(fmt.Errorf("this host belongs to cluster %s already, as %s with port %d", settings.Cluster, settings.Host, settings.Port), "leave out --token, --name, --address and --port")
	}
	if etcd := f.etcd.external(); etcd != nil && resumes {
		if err := overlay.SetExternal(cmd.Context(), dir, etcd); err != nil {
			return err
		}
	}
	if f.bgp.given() {
		if err := overlay.SetBGP(dir, routing); err != nil {
			return err
		}
	}
	if f.metrics != "" {
		settings.Metrics = f.metricsAddress()
		if err := overlay.SetMetrics(dir, settings.Metrics); err != nil {
			return err
		}
	}
	if f.uplinks != nil {
		if err := overlay.SetUplinks(dir, f.uplinkNames()); err != nil {
			return err
		}
	}
	if f.dataplane != "" && resumes {
		if err := overlay.SetDataplane(dir, f.dataplane); err != nil {
			return err
		}
		settings.Dataplane = f.dataplane
	}
	if f.encrypt && resumes {
		if err := overlay.SetEncrypt(dir); err != nil {
			return hint.With(err, "cleat-node up --encrypt --dataplane auto")
		}
		settings.Encrypt = true
	}
	if f.foreground {
		return f.serve(cmd, store, dir, settings, dataplane)
	}
	return f.background(cmd, store, dir, c, settings, resumes)
}

// canUse returns an error if this host's kernel lacks what the flags need.
func (f *upFlags) canUse(store *attach.Store, dataplane NewDataplane) error {
	ways := []string{f.dataplane}
	if f.encrypt {
		ways = append(ways, overlay.WireGuardWay)
	}
	for _, way := range ways {
		if way != overlay.Geneve && way != overlay.WireGuardWay {
			continue
		}
		d, err := dataplane(store, func(string, ...any) {})
		if err != nil {
			return err
		}
		if err := overlay.Can(d, way); err != nil {
			return fmt.Errorf("this host can't use %s: %w", way, err)
		}
	}
	return nil
}

// begin makes this host one of a new cluster, or of that of a token.
func (f *upFlags) begin(ctx context.Context, store *attach.Store, dir string, dataplane NewDataplane) (*overlay.Settings, error) {
	self := overlay.Self{Host: f.name, Port: f.port, Dataplane: f.dataplane, Encrypt: f.encrypt, Etcd: f.etcd.external()}
	if self.Host == "" {
		name, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("find this host's name: %w", err)
		}
		self.Host, _, _ = strings.Cut(strings.ToLower(name), ".")
	}
	var token trust.Token
	var err error
	if f.token != "" {
		if token, err = trust.ParseToken(f.token); err != nil {
			return nil, hint.With(hint.Usage(err), "`cleat-node token` on a host of the cluster prints one")
		}
	}
	if self.Address, err = f.ownAddress(token); err != nil {
		return nil, err
	}
	if self.MTU, err = overlay.MTUOf(self.Address); err != nil {
		return nil, hint.With(err, "`ip address` lists this host's addresses")
	}
	if f.token == "" {
		if self.Etcd != nil {
			if err := overlay.CheckExternal(ctx, self.Etcd); err != nil {
				return nil, err
			}
		}
		return overlay.Create(dir, self)
	}
	d, err := dataplane(store, func(string, ...any) {})
	if err != nil {
		return nil, err
	}
	self.Can = func(way string) error { return overlay.Can(d, way) }
	return overlay.Join(ctx, dir, self, token, func(s overlay.State, n registry.Network) error {
		if c, ok := d.(overlay.PacketChecker); ok {
			if err := c.CheckPackets(n, s, true); err != nil {
				return err
			}
		}
		return d.Check(ctx, n)
	})
}

// ownAddress returns the address from which this host reaches the cluster or, for a new one, the default route.
func (f *upFlags) ownAddress(token trust.Token) (netip.Addr, error) {
	if f.address != "" {
		a, err := netip.ParseAddr(f.address)
		if err != nil {
			return a, hint.With(hint.Usagef("--address %s: want an IP address of this host", f.address), "e.g. --address 192.0.2.1")
		}
		return a, nil
	}
	if a, ok := overlay.SourceFor(token.Addresses); ok {
		return a, nil
	}
	return netip.Addr{}, hint.With(errors.New("which of this host's addresses do the others reach?"), "cleat-node up --address ADDRESS")
}

// serve takes part in the cluster until the command is interrupted.
func (f *upFlags) serve(cmd *cobra.Command, store *attach.Store, dir string, settings *overlay.Settings, dataplane NewDataplane) error {
	errs := cmd.ErrOrStderr()
	log := func(format string, args ...any) {
		fmt.Fprintf(errs, "%s %s\n", time.Now().Format(time.DateTime), fmt.Sprintf(format, args...))
	}
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.Chdir(dir); err != nil {
		return fmt.Errorf("enter the node's directory: %w", err)
	}
	d, err := dataplane(store, log)
	if err != nil {
		return err
	}
	n, err := overlay.New(overlay.Config{Dir: dir, Dataplane: d, Program: buildinfo.Version(), Boot: store.BootID(), Log: log,
		Failure: lastFailure(), Restart: func(why overlay.Failure) { log("cleat-node can't start itself again: %v", restart(why)) }})
	if err != nil {
		return err
	}
	// At all addresses, because the host's may change.
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", settings.Port))
	if err != nil {
		return hint.With(fmt.Errorf("listen for other hosts: %w", err), fmt.Sprintf("`ss -tlnp sport = %d` shows who has the port", settings.Port))
	}
	if pages, err := sys.FindProgramPages(); err == nil {
		go pages.ReleaseEvery(cmd.Context(), releaseEvery)
	}
	path := control.SocketPath(store.Path())
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	local, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("listen for requests of this host: %w", err)
	}
	if settings.Metrics == "" {
		return n.Run(cmd.Context(), l, local)
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	served := make(chan error, 1)
	go func() { served <- serveMetrics(ctx, settings.Metrics, control.New(store.Path()), log) }()
	err = n.Run(ctx, l, local)
	cancel()
	return errors.Join(err, <-served)
}

// Variables by which a process that starts itself again knows why.
const (
	failureWhy   = "CLEAT_NODE_FAILURE"
	failureTimes = "CLEAT_NODE_FAILURES"
)

// restart starts the program again in this process.
func restart(why overlay.Failure) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, failureWhy) })
	env = append(env, failureWhy+"="+strings.ReplaceAll(why.Why, "\x00", ""), failureTimes+"="+strconv.Itoa(why.Times))
	return unix.Exec(self, []string{os.Args[0], "up", "--foreground"}, env)
}

// lastFailure returns why this process has started itself again.
func lastFailure() (f overlay.Failure) {
	f.Why = os.Getenv(failureWhy)
	f.Times, _ = strconv.Atoi(os.Getenv(failureTimes))
	return f
}

// releaseEvery is the time between returns of memory that is free. What starts up, a list of all endpoints for example,
// needs more than what goes on.
const releaseEvery = 30 * time.Second

var errRuns = errors.New("another cleat-node runs on this host")

// lockWithin is how long lock waits for a process that was killed and has yet to end.
const lockWithin = 2 * time.Second

// lock makes sure that one process takes part for a directory.
func lock(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the node's directory: %w", err)
	}
	for began := time.Now(); unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil; time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > lockWithin {
			f.Close()
			return nil, errRuns
		}
	}
	return func() { f.Close() }, nil
}

// upWithin bounds how long a host takes to take part.
const upWithin = 30 * time.Second

// resumeWithin is how long a host that has taken part before waits for the registry, which may need more hosts.
const resumeWithin = 3 * time.Second

func encrypts(s control.Status) bool {
	return s.Encryption != nil && s.Encryption.State == registry.EncryptionOn
}

// completeWithin is how long a host that the registry answers waits until it has all networks, and until its cluster
// encrypts, which may need more hosts. Devices take some milliseconds; with 1,000 hosts the entries take a second.
const completeWithin = 5 * time.Second

// background starts a process that takes part, and waits until it does.
func (f *upFlags) background(cmd *cobra.Command, store *attach.Store, dir string, c *control.Client, settings *overlay.Settings, resumes bool) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	path := filepath.Join(dir, "log")
	where := "its log: " + path
	var ended <-chan error
	if hasUnit(store, self) {
		where = "its log: journalctl -u " + unitName
		ended, err = startUnit(cmd.Context())
	} else {
		ended, err = startSession(store, self, path)
	}
	if err != nil {
		return err
	}
	began := time.Now()
	var answered time.Time // when the registry did first
	for deadline := began.Add(upWithin); ; {
		s, err := c.Status(cmd.Context())
		if err == nil && s.Registry.Answers && answered.IsZero() {
			answered = time.Now()
		}
		late := !answered.IsZero() && time.Since(answered) > completeWithin
		if err == nil && s.Registry.Answers && (s.Complete && (!f.encrypt || encrypts(s)) || late) {
			switch {
			case f.encrypt && !encrypts(s):
				fmt.Fprintf(cmd.ErrOrStderr(), "cleat-node: %s\n", cmp.Or(strings.Join(s.Problems, "; "), "nothing is encrypted yet; see cleat-node status"))
			case !s.Complete:
				fmt.Fprintf(cmd.ErrOrStderr(), "cleat-node: this host does not have all networks yet; `cleat-node status` shows what does not work\n")
			}
			return printUp(cmd.OutOrStdout(), s)
		}
		if err == nil && resumes && answered.IsZero() && time.Since(began) > resumeWithin {
			if settings.Removed {
				return hint.With(fmt.Errorf("this host was removed from cluster %s; cleat-node runs, and keeps its networks and containers as they are", s.Cluster),
					"to join again: cleat-node down; cleat-node up --token TOKEN")
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "cleat-node: the registry does not answer yet; networks are as this host last knew them\n")
			return printUp(cmd.OutOrStdout(), s)
		}
		if time.Now().After(deadline) {
			return hint.With(errors.New("cleat-node runs, but the registry does not answer"), "`cleat-node status` shows why, and so does "+where)
		}
		select {
		case <-cmd.Context().Done():
			return context.Cause(cmd.Context())
		case err := <-ended:
			return hint.With(fmt.Errorf("cleat-node has ended: %w", cmp.Or(err, io.ErrUnexpectedEOF)), where)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// startSession starts the program in a session of its own. ended receives when it has ended.
func startSession(store *attach.Store, self, path string) (ended <-chan error, err error) {
	log, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start cleat-node: %w", err)
	}
	defer log.Close()
	before, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("start cleat-node: %w", err)
	}
	child := exec.CommandContext(context.Background(), self, "up", "--foreground")
	child.Dir, child.SysProcAttr, child.Stderr = "/", &syscall.SysProcAttr{Setsid: true}, log
	child.Env = append(os.Environ(), "CLEAT_STATE_DIR="+store.Path())
	if err := child.Start(); err != nil {
		return nil, fmt.Errorf("start cleat-node: %w", err)
	}
	end := make(chan error, 1)
	go func() {
		err := child.Wait()
		end <- cmp.Or(errorIn(path, before), err)
	}()
	return end, nil
}

// errorIn returns the error with which the program has ended, with its hints, from its log without the first bytes;
// nil if there is none.
func errorIn(path string, before int64) (err error) {
	text, readErr := os.ReadFile(path)
	if readErr != nil || int64(len(text)) < before {
		return nil
	}
	for line := range strings.Lines(string(text[before:])) {
		if what, ok := strings.CutPrefix(strings.TrimSpace(line), "cleat: error: "); ok {
			err = errors.New(what)
		} else if what, ok := strings.CutPrefix(strings.TrimSpace(line), "cleat: hint: "); ok {
			err = hint.With(err, what)
		}
	}
	return err
}

func printUp(out io.Writer, s control.Status) error {
	_, err := fmt.Fprintf(out, "host %s takes part in cluster %s, of %d\n", s.Host, s.Cluster, len(s.Hosts))
	return err
}
