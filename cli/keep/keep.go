package keep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	attachcmd "cleat/cli/attach"
	"cleat/cli/container"
	"cleat/cli/exit"
	"cleat/cli/help"
	"cleat/cli/hint"
	"cleat/cli/networks"
	"cleat/compat"
	"cleat/compat/docker"
	"cleat/internal/columns"
	"cleat/internal/sys"
	"cleat/netns/find"
	"cleat/network/attach"
	"cleat/network/keep"
	"cleat/network/keep/client"
	"cleat/network/named"

	"github.com/spf13/cobra"
)

// answerFunc runs the command line of a client, as keep.Config's Answer.
type answerFunc func(ctx context.Context, r client.Request, stdout, stderr io.Writer, background *sync.WaitGroup) (code int, handled bool)

// flags are the flags of `cleat keep` as they are typed.
type flags struct {
	once, unit, status     bool
	socketUnit             bool
	untilIdle, wait, toLog bool
	json                   bool
	install, uninstall     bool
	down                   bool
	dockerSocket           string
	answer                 answerFunc
}

// New returns the command keep. answer runs the command lines of clients.
func New(answer answerFunc) *cobra.Command {
	f := &flags{answer: answer}
	cmd := &cobra.Command{
		Use:                   "keep [--once | --status | --install | --down] [FLAGS]",
		DisableFlagsInUseLine: true,
		Short:                 "extend leases, and attach again after restarts",
		Long: `Keeps what was attached with --keep or --dhcp.

It extends DHCP leases, and applies options that the server has changed: routes,
MTU, name servers. Failures are retried. When a lease expires, its address is
removed and another one is requested; the link stays. Links of --keep are
attached again when the container or the machine restarts, and when somebody
removes them; use ` + "`cleat detach`" + ` to remove one for good. Each address is
announced to the neighbours a second time, 2 s after it was added.

With ` + "`cleat keep`" + ` running, ` + "`cleat attach`, `detach` and `net`" + ` only send it a
request, if they are the same program, run by the same user in the same
namespaces. Their output is the same. A command that is interrupted is rolled
back. It also keeps the networks of ` + "`cleat net`" + `: names, rules and devices, and
serves them to Docker as the network driver "cleat" (doc/docker.md).

It listens to Docker, and watches the directories of Podman, containerd and
named namespaces; other engines are polled every 2 s. Stopping or killing it
leaves all links in place; the next keeper takes over.

Each state directory has one keeper; a second one exits with 4. ` + "`cleat attach`" + `
starts a keeper if none runs. That one ends with the last attachment that needs
it, or a minute after the last container has left all networks, and logs to
keeper.log in the state directory. Under systemd it is a service of its own, so
it outlives the service or session that attached. When the program's file is
replaced, the keeper goes on with the new version.

--install has systemd start a keeper at boot, so that networks and links are
back then, and when Docker asks for one. It ends when there is nothing to keep.

--down stops the keeper and removes all networks and links of the state
directory from the kernel, but keeps the files that say what is wanted. The next
keeper brings networks and links of --keep back, as after a restart of the
machine.`,
		Example: `  # have a keeper from boot on
  sudo cleat keep --install

  # show the last action for each attachment, and what fails
  cleat keep --status

  # do what is due now
  sudo cleat keep --once`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().BoolVar(&f.once, "once", false, "do what is due now, then exit")
	cmd.Flags().BoolVar(&f.status, "status", false, "show whether a keeper runs, and its last actions")
	cmd.Flags().BoolVar(&f.json, "json", false, "with --status: print a JSON object")
	cmd.Flags().BoolVar(&f.unit, "print-unit", false, "print a systemd unit and do nothing")
	cmd.Flags().BoolVar(&f.socketUnit, "print-socket-unit", false, "print the systemd unit of the socket for Docker and do nothing")
	cmd.Flags().BoolVar(&f.install, "install", false, "install systemd units, and start a keeper now, at boot and when Docker asks")
	cmd.Flags().BoolVar(&f.uninstall, "uninstall", false, "stop and remove the units of --install")
	cmd.Flags().BoolVar(&f.down, "down", false, "stop the keeper, and take all networks and links down until the next one")
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait while another keeper runs")
	cmd.Flags().BoolVar(&f.untilIdle, "until-idle", false, "exit when there is nothing left to keep")
	cmd.Flags().BoolVar(&f.toLog, "log", false, "log to keeper.log in the state directory")
	cmd.Flags().StringVar(&f.dockerSocket, "docker-socket", "", "serve Docker's plug-in at `PATH`; default: "+docker.Socket+" where Docker is installed")
	cmd.MarkFlagsMutuallyExclusive("once", "status", "print-unit", "print-socket-unit", "install", "uninstall", "down", "until-idle")
	cmd.MarkFlagsMutuallyExclusive("once", "status", "print-unit", "print-socket-unit", "install", "uninstall", "down", "wait")
	cmd.MarkFlagsMutuallyExclusive("status", "print-unit", "print-socket-unit", "install", "uninstall", "down", "log")
	help.Status(cmd, strconv.Itoa(keep.ExitRunning), "another keeper runs")
	help.File(cmd, keep.UnitDir+keep.UnitName, "the unit of --install")
	help.File(cmd, keep.UnitDir+keep.SocketUnitName, "the unit of --install for Docker's requests")
	help.File(cmd, "/var/lib/cleat/attachments", "what to keep; CLEAT_STATE_DIR replaces /var/lib/cleat")
	help.File(cmd, "/var/lib/cleat/keeper.socket", "accepts requests of attach, detach, net and engines")
	help.File(cmd, "/var/lib/cleat/keeper.lock", "held by the keeper; has its process id")
	help.File(cmd, "/var/lib/cleat/keeper.log", "log of keepers that attach has started")
	return cmd
}

func (f *flags) run(cmd *cobra.Command) error {
	if f.json && !f.status {
		return hint.With(hint.Usagef("--json: want --status as well"), "cleat keep --status --json")
	}
	cfg, err := container.Config()
	if err != nil {
		return err
	}
	switch {
	case f.unit:
		return printUnit(cmd.OutOrStdout(), cfg.Store)
	case f.socketUnit:
		return printSocketUnit(cmd.OutOrStdout())
	case f.install:
		return install(cmd, cfg.Store)
	case f.uninstall:
		return uninstall(cmd, cfg.Store)
	case f.down:
		return attachcmd.WithHint(down(cmd, cfg))
	case f.status:
		return printStatus(cmd, cfg.Store, f.json)
	}
	err = f.keep(cmd, cfg)
	if errors.Is(err, keep.ErrRunning) {
		err = fmt.Errorf("keep the attachments in %s: %w", cfg.Store.Path(), err)
		return hint.With(exit.With(keep.ExitRunning, err), "`cleat keep --status` shows what that one does; --wait waits until it ends")
	}
	return attachcmd.WithHint(err)
}

func (f *flags) keep(cmd *cobra.Command, cfg attach.Config) error {
	c := keep.Config{Attach: cfg, UntilIdle: f.untilIdle, Wait: f.wait, Listen: find.Listen, Ready: notifySystemd, Answer: f.answer}
	c.Log = func(format string, args ...any) {
		fmt.Fprintf(cmd.ErrOrStderr(), "cleat: %s\n", columns.Plain(fmt.Sprintf(format, args...)))
	}
	if f.toLog {
		l, err := keep.OpenLog(cfg.Store)
		if err != nil {
			return err
		}
		defer l.Close()
		c.Log = l.Printf
	}
	if f.once {
		return keep.Once(cmd.Context(), c)
	}
	var mu sync.Mutex
	kept := named.KeeperConfig{Config: named.Config{Attach: cfg, Files: &named.Files{}}, StartNameServer: func() error { return startNameServer(cfg.Store) },
		Log: func(format string, args ...any) { mu.Lock(); defer mu.Unlock(); c.Log(format, args...) }}
	keeper := named.NewKeeper(kept)
	c.Networks = keeper
	c.Answer = func(ctx context.Context, r client.Request, stdout, stderr io.Writer, background *sync.WaitGroup) (int, bool) {
		return f.answer(networks.WithShared(ctx, networks.Shared{Rules: keeper.Rules(), Files: kept.Files, Counters: func() (any, error) { return keeper.FastCounters() }}), r, stdout, stderr, background)
	}
	c.Contract, c.Unlimited = compat.IsContract, compat.IsQuery
	c.Exclusive = func(args []string) bool {
		return args[0] == networks.Name && networks.Changes(args[1:]) || compat.IsContract(args)
	}
	c.Pathless = func(args []string) bool { return args[0] == networks.Name && networks.IsRule(args[1:]) }
	c.Universal = func(args []string) bool {
		return args[0] == networks.Name && (networks.IsSync(args[1:]) || networks.IsCounters(args[1:]))
	}
	c.Quiet = func(args []string) bool { return args[0] == networks.Name && networks.IsCounters(args[1:]) }
	// Nearly all of the work is the kernel's, one step after the other. To hand it from thread
	// to thread takes longer than waiting.
	runtime.GOMAXPROCS(1)
	if pages, err := sys.FindProgramPages(); err == nil {
		ctx, cancel := context.WithCancel(cmd.Context())
		defer cancel()
		go pages.ReleaseEvery(ctx, releaseInterval)
	}
	self, err := runningProgram()
	if err != nil {
		return err
	}
	stopDocker, err := f.serveDocker(cmd.Context(), &c, keeper, kept)
	if err != nil {
		return err
	}
	defer stopDocker()
	ctx, cancel := self.untilReplaced(cmd.Context())
	defer cancel(nil)
	if err := keep.Run(ctx, c); err != nil || !errors.Is(context.Cause(ctx), errUpgraded) {
		return err
	}
	c.Log("%v: the new version goes on", errUpgraded)
	stopDocker()
	return self.restart()
}

// releaseInterval is the time after which memory is given back that commands have needed.
const releaseInterval = 10 * time.Second

// notifySystemd reports to the service manager that started this process, if any, that it is
// ready (sd_notify(3)). That is so as well while another keeper runs.
func notifySystemd(waiting bool) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return // systemd reports that the service is not ready
	}
	defer conn.Close()
	status := "keeps attachments"
	if waiting {
		status = "waits while another keeper runs"
	}
	_, _ = io.WriteString(conn, "READY=1\nSTATUS="+status+"\n")
}

// printUnit writes a unit file (systemd.service(5)).
func printUnit(out io.Writer, store *attach.Store) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	environment := ""
	if dir := store.Path(); os.Getenv("CLEAT_STATE_DIR") != "" {
		environment = fmt.Sprintf("Environment=%q\n", "CLEAT_STATE_DIR="+unitPath(dir))
	}
	// Docker asks its plug-in when it starts, so the keeper must not wait for Docker.
	_, err = fmt.Fprintf(out, `[Unit]
Description=Keep containers attached (cleat)
Documentation=man:cleat-keep(1)
After=network.target containerd.service podman.service lxc.service
Before=docker.service

[Service]
Type=notify
ExecStart=%s keep --wait --until-idle
%sRestart=on-failure
RestartSec=1
SuccessExitStatus=143

[Install]
WantedBy=multi-user.target
`, unitWord(self), environment)
	return err
}

// unitPath quotes a path that is all of a unit's setting.
func unitPath(path string) string { return strings.ReplaceAll(path, "%", "%%") }

// printSocketUnit writes the unit of the socket at which Docker finds its plug-in (systemd.socket(5)). Its
// name is that of the keeper's unit, so systemd passes the socket to the keeper, and starts one for it.
func printSocketUnit(out io.Writer) error {
	_, err := fmt.Fprintf(out, `[Unit]
Description=Docker's network driver (cleat)
Documentation=man:cleat-keep(1)
Before=docker.service docker.socket

[Socket]
ListenStream=%s
SocketMode=0600
RemoveOnStop=yes

[Install]
WantedBy=sockets.target
`, docker.Socket)
	return err
}

// unitWord quotes a path for the command line of a unit.
func unitWord(path string) string {
	path = strings.NewReplacer("%", "%%", "$", "$$").Replace(path)
	if strings.ContainsAny(path, " \t\"'\\;") {
		return fmt.Sprintf("%q", path)
	}
	return path
}
