package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"cleat/internal/program"
	"cleat/netns"

	"golang.org/x/sys/unix"
)

// OVS is a private Open vSwitch: ovsdb-server and ovs-vswitchd as child processes
// in one namespace, with a directory of their own. Both die with this process. OVS
// is safe for concurrent use.
type OVS struct {
	dir   string
	db    *child
	vs    *child
	close sync.Once
	err   error
}

// ovsSchemaDir is where the schema of the database is, unless OVS_PKGDATADIR is
// set.
const ovsSchemaDir = "/usr/share/openvswitch"

// ovsStart and ovsStop limit how long the daemons may take. Under software
// emulation they need a few seconds, and a starved guest's clock runs fast.
const (
	ovsStart = 2 * time.Minute
	ovsStop  = 5 * time.Second
)

// ovsUptime is the uptime before which ovs-vswitchd 3.1 does not count processors.
// A switch that starts earlier has no handler threads ("n-handler-threads to 0" in
// its log) and forwards nothing.
const ovsUptime = 11 * time.Second

// awaitUptime blocks until the machine has been up for d.
func awaitUptime(ctx context.Context, d time.Duration) error {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &up); err != nil {
		return err
	}
	select {
	case <-time.After(d - time.Duration(up.Nano())):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// StartOVS starts a switch in ns that keeps its files in dir. dir must not exist;
// Close removes it. StartOVS blocks until the switch accepts commands. When ctx
// ends, the daemons are killed. If the programs are not installed, the error is a
// *Lack.
func StartOVS(ctx context.Context, ns *netns.NS, dir string) (*OVS, error) {
	if err := checkOVSPrograms(); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if socket := filepath.Join(dir, ovsSocket); len(socket) >= len(unix.RawSockaddrUnix{}.Path) {
		return nil, fmt.Errorf("start open vswitch: socket path too long: %s", socket)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("start open vswitch: %w", err)
	}
	o := &OVS{dir: dir}
	if err := o.start(ctx, ns); err != nil {
		return nil, errors.Join(fmt.Errorf("start open vswitch: %w", err), o.Close())
	}
	return o, nil
}

const ovsSocket = "db.sock"

func checkOVSPrograms() error {
	for _, p := range []string{"ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-appctl"} {
		if _, err := program.Find(p); err != nil {
			return newLack("openvswitch", err)
		}
	}
	return nil
}

// DB returns the address of the switch's database, for OVSBridgeSpec.DB and
// ovs-vsctl --db.
func (o *OVS) DB() string { return "unix:" + o.path(ovsSocket) }

func (o *OVS) path(name string) string { return filepath.Join(o.dir, name) }

func (o *OVS) start(ctx context.Context, ns *netns.NS) error {
	within, cancel := context.WithTimeout(ctx, ovsStart)
	defer cancel()
	schema := filepath.Join(ovsSchemaDir, "vswitch.ovsschema")
	if d := os.Getenv("OVS_PKGDATADIR"); d != "" {
		schema = filepath.Join(d, "vswitch.ovsschema")
	}
	if err := o.run(within, "ovsdb-tool", "create", o.path("conf.db"), schema); err != nil {
		return err
	}
	var err error
	o.db, err = o.daemon(ctx, ns, "ovsdb-server", o.path("conf.db"), "--remote=p"+o.DB())
	if err != nil {
		return err
	}
	if err := o.db.waitForSocket(within, o.path(ovsSocket)); err != nil {
		return err
	}
	if err := awaitUptime(within, ovsUptime); err != nil {
		return err
	}
	o.vs, err = o.daemon(ctx, ns, "ovs-vswitchd", o.DB())
	if err != nil {
		return err
	}
	return o.vs.waitForSocket(within, o.path("ovs-vswitchd.ctl"))
}

// environ returns an environment that keeps the daemons and their tools out of the
// system's directories.
func (o *OVS) environ() []string {
	return append(os.Environ(), "OVS_RUNDIR="+o.dir, "OVS_LOGDIR="+o.dir, "OVS_DBDIR="+o.dir, "OVS_SYSCONFDIR="+o.dir)
}

func (o *OVS) run(ctx context.Context, name string, args ...string) error {
	cmd := program.CommandContext(ctx, name, args...)
	cmd.Env = o.environ()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}

func (o *OVS) daemon(ctx context.Context, ns *netns.NS, name string, args ...string) (*child, error) {
	args = append(args, "--no-chdir", "-vconsole:off", "-vsyslog:off", "-vfile:info",
		"--log-file="+o.path(name+".log"), "--unixctl="+o.path(name+".ctl"))
	cmd := program.CommandContext(ctx, name, args...)
	cmd.Env = o.environ()
	return startChild(ns, cmd, o.path(name+".log"))
}

// Close stops the daemons, which removes the switch's bridges, and removes the
// directory. Closing twice is harmless.
func (o *OVS) Close() error {
	o.close.Do(func() {
		if o.vs != nil {
			within, cancel := context.WithTimeout(context.Background(), ovsStop)
			// Without --cleanup the kernel keeps the datapath. An error is ignored: stop
			// ends a daemon that does not respond.
			_ = o.run(within, "ovs-appctl", "--target="+o.path("ovs-vswitchd.ctl"), "exit", "--cleanup")
			cancel()
			o.vs.stop()
		}
		if o.db != nil {
			o.db.stop()
		}
		o.err = os.RemoveAll(o.dir)
	})
	return o.err
}

// child is a process that dies with this process.
type child struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when the process has ended
	err  error         // how it ended; valid once done is closed
}

// startChild starts cmd in ns. The kernel sends the death signal when the thread
// that forked ends, so that thread waits in the namespace until the child has
// ended.
func startChild(ns *netns.NS, cmd *exec.Cmd, log string) (*child, error) {
	c := &child{cmd: cmd, log: log, done: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		err := ns.Do(func() error {
			err := cmd.Start()
			started <- err
			if err != nil {
				return nil
			}
			c.err = cmd.Wait()
			close(c.done)
			return nil
		})
		if err != nil { // entering the namespace failed
			started <- err
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	return c, nil
}

func (c *child) waitForSocket(ctx context.Context, socket string) error {
	again := time.NewTicker(5 * time.Millisecond) // a daemon takes some 20 ms to start
	defer again.Stop()
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-c.done:
			return fmt.Errorf("%s ended: %v: %s", filepath.Base(c.cmd.Path), c.err, c.logTail())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", filepath.Base(c.cmd.Path), ctx.Err())
		case <-again.C:
		}
	}
}

func (c *child) logTail() string {
	b, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}

// stop terminates the child, kills it if it does not end in time, and waits for
// it.
func (c *child) stop() {
	// An error means that the child has already ended.
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(ovsStop):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}
