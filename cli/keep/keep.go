package keep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"

	attachcmd "cleat/cli/attach"
	"cleat/cli/container"
	"cleat/cli/exit"
	"cleat/cli/hint"
	"cleat/internal/columns"
	"cleat/netns/find"
	"cleat/network/attach"
	"cleat/network/keep"

	"github.com/spf13/cobra"
)

// answerFunc runs the command line of a client, as keep.Config's Answer.
type answerFunc func(ctx context.Context, r keep.Request, stdout, stderr io.Writer, background *sync.WaitGroup) (code int, handled bool)

// flags are the flags of `cleat keep` as they are typed.
type flags struct {
	once, unit, status     bool
	untilIdle, wait, toLog bool
	asJSON                 bool
	answer                 answerFunc
}

func New(answer answerFunc) *cobra.Command {
	f := &flags{answer: answer}
	cmd := &cobra.Command{
		Use:                   "keep [--once | --status | --print-unit] [FLAGS]",
		DisableFlagsInUseLine: true,
		Short:                 "extend leases, and attach again what started anew",
		Long: `Keeps what was attached with --keep or --dhcp. Leases are extended, and what a
server then says otherwise than before is set: routes, MTU, name servers; what
can't be is tried again. When a lease is over, its address goes and another is
asked for; the link stays. What was attached with --keep is attached again when
its container or the machine has started anew, and its link is made again when
somebody removes it: to be rid of one there is ` + "`cleat detach`" + `.
Neighbours are told of addresses a second time, 2 s after.

While it runs, ` + "`cleat attach` and `cleat detach`" + ` have it do their work,
which takes less time: unless they are of another program, user or namespace.
They say the same, and what they are stopped at is undone.

It listens to Docker, and to what appears in the directories of Podman,
containerd and of named namespaces; others are looked at every 2 s. It runs
until it is stopped, or even killed; that changes nothing, and the next one goes
on. There is one for each state directory: a second one says so and exits with
4. ` + "`cleat attach`" + ` starts one where none runs, which ends with the last
attachment that it keeps, and writes what it does to keeper.log in the state
directory. Where there is systemd it is a service of its own, so that it does
not end with the service or session that attached. To have one after the
machine's start, too, give systemd the unit that --print-unit prints.`,
		Example: `  # after each start of the machine
  cleat keep --print-unit | sudo tee /etc/systemd/system/cleat-keep.service
  sudo systemctl enable cleat-keep
  sudo systemctl start cleat-keep

  # what the keeper did last, and what it can't do
  cleat keep --status

  # only what is due now
  sudo cleat keep --once`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().BoolVar(&f.once, "once", false, "do what is due now, and end")
	cmd.Flags().BoolVar(&f.status, "status", false, "tell whether a keeper runs, and what it did last")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print one JSON object (with --status)")
	cmd.Flags().BoolVar(&f.unit, "print-unit", false, "print a unit for systemd, and do nothing")
	cmd.Flags().BoolVar(&f.wait, "wait", false, "while another keeper runs, wait for its end")
	cmd.Flags().BoolVar(&f.untilIdle, "until-idle", false, "end when nothing is to be kept any more")
	cmd.Flags().BoolVar(&f.toLog, "log", false, "say what it does in keeper.log in the state directory")
	cmd.MarkFlagsMutuallyExclusive("once", "status", "print-unit", "until-idle")
	cmd.MarkFlagsMutuallyExclusive("once", "status", "print-unit", "wait")
	cmd.MarkFlagsMutuallyExclusive("status", "print-unit", "log")
	return cmd
}

func (f *flags) run(cmd *cobra.Command) error {
	if f.asJSON && !f.status {
		return hint.With(hint.Usagef("--json is for --status"), "cleat keep --status --json")
	}
	cfg, err := container.Config()
	if err != nil {
		return err
	}
	switch {
	case f.unit:
		return printUnit(cmd.OutOrStdout(), cfg.Store)
	case f.status:
		return printStatus(cmd, cfg.Store, f.asJSON)
	}
	err = f.keep(cmd, cfg)
	if errors.Is(err, keep.ErrRunning) {
		err = fmt.Errorf("keep what is below %s: %w", cfg.Store.Path(), err)
		return hint.With(exit.With(keep.ExitRunning, err), "it does all that is due; `cleat keep --status` tells what it did, and --wait waits for its end")
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
	// Nearly all that it does is done by the kernel, one thing after the other: handing it
	// between threads takes longer than it would wait for another.
	runtime.GOMAXPROCS(1)
	return keep.Run(cmd.Context(), c)
}

// notifySystemd tells the service manager that started us, if one did, that we are
// ready (sd_notify(3)): also while another keeper runs, as all is kept then.
func notifySystemd(waiting bool) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return // whoever waits for it says so
	}
	defer conn.Close()
	status := "keeps what is attached"
	if waiting {
		status = "waits for the end of another keeper"
	}
	_, _ = io.WriteString(conn, "READY=1\nSTATUS="+status+"\n")
}

// printUnit prints what systemd wants to know (systemd.service(5)).
func printUnit(out io.Writer, store *attach.Store) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	environment := ""
	if dir := store.Path(); os.Getenv("CLEAT_STATE_DIR") != "" {
		environment = fmt.Sprintf("Environment=%q\n", "CLEAT_STATE_DIR="+strings.ReplaceAll(dir, "%", "%%"))
	}
	_, err = fmt.Fprintf(out, `[Unit]
Description=Keep containers attached (cleat)
Documentation=man:cleat-keep(1)
After=network.target docker.service containerd.service podman.service lxc.service

[Service]
Type=notify
ExecStart=%s keep --wait
%sRestart=always
RestartSec=1
SuccessExitStatus=143

[Install]
WantedBy=multi-user.target
`, unitWord(self), environment)
	return err
}

// unitWord is a path as a unit's command line has it.
func unitWord(path string) string {
	path = strings.NewReplacer("%", "%%", "$", "$$").Replace(path)
	if strings.ContainsAny(path, " \t\"'\\;") {
		return fmt.Sprintf("%q", path)
	}
	return path
}
