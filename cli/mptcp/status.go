package mptcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"cleat/cli/term"
	"cleat/internal/columns"
	"cleat/link"
	"cleat/mptcp"
	"cleat/netns"

	"github.com/spf13/cobra"
)

// watchInterval is the interval of --watch: short enough to see a link die, long enough
// to read.
const watchInterval = time.Second

func newStatus() *cobra.Command {
	var asJSON, watch bool
	var ref string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "show endpoints, limits and connections with their subflows",
		Long: `Shows the kernel's endpoints, its limits and their maximum (tried in a temporary
namespace), and each MPTCP connection with its subflows: device, bytes,
round-trip time. Older kernels show subflows only to root.`,
		Example: `  cleat mptcp status
  cleat mptcp status --watch
  cleat mptcp status --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ns, err := namespace(cmd.Context(), ref)
			if err != nil {
				return err
			}
			defer ns.Close()
			show := showMPTCPText
			if asJSON {
				show = func(out io.Writer, s *status) error { return json.NewEncoder(out).Encode(s) }
			}
			return withHint(watchMPTCP(cmd.Context(), cmd.OutOrStdout(), ns, watch, show))
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "refresh every second, until Ctrl-C")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object; with --watch, one each second")
	cmd.Flags().StringVar(&ref, "netns", "", "show the network namespace of `CONTAINER`: a container, process id, namespace name or path")
	completeNamespaces(cmd)
	return cmd
}

// status is the output of one interval.
type status struct {
	Off         string                 `json:"switched_off,omitempty"` // why no connection uses MPTCP
	Limits      link.MPTCPLimits       `json:"limits"`
	Most        *link.MPTCPCapacity    `json:"kernel_allows"` // null if the query failed
	Asking      string                 `json:"kernel_allows_error,omitempty"`
	Endpoints   []link.MPTCPEndpoint   `json:"endpoints"`
	Devices     []string               `json:"devices"` // devices of `cleat mptcp setup`
	Left        []string               `json:"left"`
	Summary     string                 `json:"summary,omitempty"`
	Connections []link.MPTCPConnection `json:"connections"`
}

func watchMPTCP(ctx context.Context, out io.Writer, ns *netns.NS, watch bool, show func(io.Writer, *status) error) error {
	var base status
	if err := mptcp.CheckSwitches(ns); err != nil && !errors.As(err, new(*mptcp.SwitchError)) {
		return err
	} else if err != nil {
		base.Off = err.Error()
	}
	if most, err := mptcp.FindMost(ctx); err == nil {
		base.Most = &most
	} else {
		base.Asking = err.Error()
	}
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		s := base
		if err := s.look(ns); err != nil {
			return err
		}
		if err := show(out, &s); err != nil || !watch {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func (s *status) look(ns *netns.NS) (err error) {
	if s.Limits, err = link.ReadMPTCPLimits(ns); err != nil {
		return err
	}
	if s.Endpoints, err = link.MPTCPEndpoints(ns); err != nil {
		return err
	}
	if s.Connections, err = link.MPTCPConnections(ns); err != nil {
		return err
	}
	state, err := mptcp.ReadState(ns, "")
	if err != nil {
		return err
	}
	if state != nil {
		s.Devices, s.Left = state.Devices, state.Unused
		var most link.MPTCPCapacity
		if s.Most != nil {
			most = *s.Most
		}
		s.Summary = unusedText(len(s.Devices), len(s.Left), most, s.Limits)
	}
	s.Endpoints, s.Connections = term.OrEmpty(s.Endpoints), term.OrEmpty(s.Connections)
	s.Devices, s.Left = term.OrEmpty(s.Devices), term.OrEmpty(s.Left)
	return nil
}

func showMPTCPText(out io.Writer, s *status) error {
	var b strings.Builder
	if s.Off != "" {
		b.WriteString(s.Off + "\n")
	}
	fmt.Fprintf(&b, "limits      %s, %s accepted from the peer\n", term.Count(s.Limits.Subflows, "further subflow"), term.Count(s.Limits.AcceptedAddAddrs, "address"))
	if s.Most != nil {
		fmt.Fprintf(&b, "kernel      allows %s, %s\n", term.Count(s.Most.Subflows, "further subflow"), term.Count(s.Most.Endpoints, "endpoint"))
	} else {
		fmt.Fprintf(&b, "kernel      maximum unknown: %s\n", s.Asking)
	}
	if s.Summary != "" {
		b.WriteString(labelled("devices", fmt.Sprintf("%s; not used: %s; %s", s.Summary, strings.Join(s.Left, ", "), tunnelHint)))
	}
	for _, e := range s.Endpoints {
		fmt.Fprintf(&b, "endpoint    %s\n", mptcp.Describe(e))
	}
	if len(s.Endpoints) == 0 {
		b.WriteString("endpoints   none: add them with `cleat mptcp setup DEVICE…`\n")
	}
	if len(s.Connections) == 0 {
		b.WriteString("connections none\n")
	}
	for _, c := range s.Connections {
		b.WriteString("\n" + connectionText(c))
	}
	_, err := io.WriteString(out, b.String()+"\n")
	return err
}

// labelled formats a line of the status, wrapped after its label.
func labelled(label, text string) string {
	const width = 12 // of the labels
	indent := strings.Repeat(" ", width)
	return fmt.Sprintf("%-*s", width, label) + strings.TrimPrefix(term.Wrap(text, indent), indent)
}

// connectionText describes a connection, with a table of its subflows.
func connectionText(c link.MPTCPConnection) string {
	text := fmt.Sprintf("%s → %s %s, %d of %s", c.Local, c.Remote, strings.ToLower(c.State), c.ExtraSubflows, term.Count(c.ExtraSubflowsLimit, "further subflow"))
	switch {
	case c.Fallback:
		text += ", fallen back to TCP"
	case c.ExtraSubflowsLimit > 0 && c.ExtraSubflows == c.ExtraSubflowsLimit:
		text += ": the limit is reached"
	}
	text = labelled("connection", text)
	if len(c.Subflows) == 0 {
		return text
	}
	rows := [][]string{{"DEVICE", "SENT", "RECEIVED", "RTT", "STATE"}}
	for _, f := range c.Subflows {
		state := strings.ToLower(f.State)
		if f.Backup {
			state += ", backup"
		}
		rows = append(rows, []string{cmp.Or(f.Device, "?"), term.Bytes(f.BytesSent), term.Bytes(f.BytesReceived), term.Seconds(f.RTT.Seconds()), state})
	}
	widths := columns.Widths(rows)
	for i, r := range rows {
		text += "  " + columns.Row(r, widths)
		if i > 0 { // IPv6 addresses fill a line
			f := c.Subflows[i-1]
			text += term.Wrap(fmt.Sprintf("%s → %s", f.Local, f.Remote), "    ")
		}
	}
	return text
}
