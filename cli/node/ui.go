package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"cleat/cli/hint"
	"cleat/network/attach"
	"cleat/overlay/control"
	"cleat/overlay/ui"

	"github.com/spf13/cobra"
)

func newUI() *cobra.Command {
	var listen string
	var anyone bool
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "show the hosts, their containers and who talks to whom in a browser",
		Long: `Serves a page with a live picture of the cluster: which hosts are alive, the
networks and containers on each, who talks to whom and how much, and what does
not work since when. The page of any host shows all hosts. It changes nothing.

The page has no login. So only programs of this machine reach it, unless --listen
has another address and --anyone says that this is meant.`,
		Example: `  # here, until interrupted; then open http://127.0.0.1:7791/
  sudo cleat-node ui

  # the page of another machine, over SSH
  ssh -L 7791:127.0.0.1:7791 root@192.0.2.1 cleat-node ui

  # for everyone who reaches 192.0.2.1
  sudo cleat-node ui --listen 192.0.2.1:7791 --anyone`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runUI(cmd, listen, anyone) },
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:7791", "`ADDRESS:PORT` of the page")
	cmd.Flags().BoolVar(&anyone, "anyone", false, "serve whoever reaches an address that is not a loopback one")
	return cmd
}

func runUI(cmd *cobra.Command, listen string, anyone bool) error {
	if os.Geteuid() != 0 {
		return hint.With(errors.New("only root may ask cleat-node what it knows"), "sudo cleat-node ui")
	}
	at, err := netip.ParseAddrPort(strings.Replace(listen, "localhost:", "127.0.0.1:", 1))
	if err != nil {
		return hint.With(hint.Usagef("--listen %s: want an IP address and a port", listen), "e.g. --listen 127.0.0.1:7791")
	}
	if !at.Addr().IsLoopback() && !anyone {
		return hint.With(hint.Usagef("the page has no login, and whoever reaches %s would see it", at), fmt.Sprintf("cleat-node ui --listen %s --anyone, or over SSH: ssh -L 7791:127.0.0.1:7791 THIS-HOST cleat-node ui", at))
	}
	store, err := attach.OpenStore("")
	if err != nil {
		return err
	}
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("find this host's name: %w", err)
	}
	short, _, _ := strings.Cut(name, ".")
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		return hint.With(fmt.Errorf("listen for browsers: %w", err), "choose another port: cleat-node ui --listen 127.0.0.1:PORT")
	}
	if !at.Addr().IsLoopback() {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: the page has no login; whoever reaches %s sees all hosts and containers\n", l.Addr())
	}
	fmt.Fprintf(cmd.OutOrStdout(), "http://%s/\n", l.Addr())
	return serveHTTP(cmd.Context(), l, ui.Handler(ui.Config{Source: control.New(store.Path()), Names: []string{name, short}}))
}

// Bounds of HTTP connections: their requests are short, and so are the answers.
const (
	requestWithin = 10 * time.Second
	answerWithin  = 30 * time.Second
	idleWithin    = 2 * time.Minute
)

// serveHTTP serves until ctx ends. It closes l.
func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	s := &http.Server{Handler: h, ReadTimeout: requestWithin, WriteTimeout: answerWithin, IdleTimeout: idleWithin}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}
