package mptcp

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"cleat/cli/complete"
	"cleat/cli/help"
	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/link"
	"cleat/mptcp"

	"github.com/spf13/cobra"
)

// setupFlags are the flags of `cleat mptcp setup` as they are typed.
type setupFlags struct {
	cfg    mptcp.Config
	family string
	netns  string
	undo   bool
	plan   bool
	asJSON bool
}

func newSetup() *cobra.Command {
	f := &setupFlags{}
	cmd := &cobra.Command{
		Use:                   "setup DEVICE… [FLAGS]",
		DisableFlagsInUseLine: true,
		Short:                 "let MPTCP connections use the links of the devices",
		Long: `Adds the addresses of the devices as MPTCP endpoints, raises the limits of
subflows to the kernel's maximum, and routes the packets of each address by its
own link. This is atomic. Run it again after an address or a gateway has
changed, or for other devices: it keeps what is right, and removes what is no
longer needed.

The end that connects opens subflows (--subflow, the default). The other end, a
server with several addresses, announces them (--signal). --undo removes
everything.`,
		Example: `  # as root, at the end that connects
  cleat mptcp setup eth0 wlan0 --backup wlan0

  # at the server
  cleat mptcp setup eth0 eth1 --signal

  # show what would be done, as commands of ip(8)
  cleat mptcp setup eth0 eth1 --plan

  cleat mptcp setup --undo`,
		ValidArgsFunction: complete.Devices,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.cfg.Devices = args
			return f.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.cfg.Subflow, "subflow", false, "open subflows from the addresses; default without --signal")
	flags.BoolVar(&f.cfg.Signal, "signal", false, "announce the addresses to the peer")
	flags.BoolVar(&f.cfg.FullMesh, "fullmesh", false, "open subflows from each address to each of the peer's")
	flags.StringSliceVar(&f.cfg.Backup, "backup", nil, "use the device `NAME` only if the others fail")
	flags.StringVar(&f.family, "family", "", "use only addresses of `FAMILY`, ipv4 or ipv6 (default: both)")
	flags.IntVar(&f.cfg.Limits, "limits", 0, "allow `NUMBER` subflows beyond the first (default: the kernel's maximum)")
	flags.StringVar(&f.netns, "netns", "", "work in the network namespace of `CONTAINER`: a container, process id, namespace name or path")
	flags.BoolVar(&f.undo, "undo", false, "remove what setup created")
	flags.BoolVar(&f.plan, "plan", false, "print the steps and do nothing")
	flags.BoolVar(&f.asJSON, "json", false, "print a JSON object")
	help.File(cmd, "/run/cleat/mptcp-*.json", "what setup created, for --undo; CLEAT_RUN_DIR replaces /run/cleat")
	complete.Words(cmd, "family", "ipv4", "ipv6")
	complete.Words(cmd, "limits")
	completeNamespaces(cmd)
	complete.Flag(cmd, "backup", complete.Devices)
	return cmd
}

func (f *setupFlags) check() error {
	c := &f.cfg
	var each []string
	for _, d := range c.Devices {
		if !slices.Contains(each, d) {
			each = append(each, d)
		}
	}
	c.Devices = each
	for _, b := range c.Backup {
		if !slices.Contains(c.Devices, b) {
			return hint.With(hint.Usagef("--backup %s: not one of the devices", b), "cleat mptcp setup "+strings.Join(append(c.Devices, b), " ")+" --backup "+b)
		}
	}
	switch {
	case f.undo && len(c.Devices) > 0:
		return hint.With(hint.Usagef("--undo removes everything and takes no devices"), "cleat mptcp setup --undo; or leave --undo out and name the devices to keep")
	case !f.undo && len(c.Devices) == 0:
		return hint.With(hint.Usagef("no device given"), "e.g. `cleat mptcp setup eth0 eth1`; `ip -brief address` lists devices")
	case c.FullMesh && c.Signal:
		return hint.Usagef("--fullmesh is for the end that opens subflows and can't be combined with --signal")
	case c.Limits < 0:
		return hint.Usagef("--limits %d: want 1 or more", c.Limits)
	case f.family != "" && f.family != "ipv4" && f.family != "ipv6":
		return hint.With(hint.Usagef("--family %q: want ipv4 or ipv6", f.family), hint.DidYouMean(f.family, []string{"ipv4", "ipv6"}))
	}
	c.Subflow = c.Subflow || !c.Signal
	c.Family = map[string]int{"ipv4": 4, "ipv6": 6}[f.family]
	return nil
}

func (f *setupFlags) run(ctx context.Context, out io.Writer) error {
	if err := f.check(); err != nil {
		return err
	}
	ns, err := namespace(ctx, f.netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	f.cfg.NS = ns
	plan, err := f.makePlan(ctx)
	if err != nil {
		return withHint(err)
	}
	defer plan.Close()
	if !f.plan {
		if err := plan.Apply(); err != nil {
			return withHint(fmt.Errorf("nothing was changed: %w", err))
		}
	}
	return f.print(out, plan)
}

func (f *setupFlags) makePlan(ctx context.Context) (*mptcp.Plan, error) {
	if f.undo {
		return mptcp.Undo(f.cfg.NS, f.cfg.Dir)
	}
	if err := mptcp.CheckSwitches(f.cfg.NS); err != nil {
		return nil, err
	}
	var err error
	if f.cfg.Most, err = mptcp.FindMost(ctx); err != nil {
		return nil, err
	}
	if f.cfg.Limits > f.cfg.Most.Subflows {
		return nil, hint.With(hint.Usagef("--limits %d: the kernel allows at most %d", f.cfg.Limits, f.cfg.Most.Subflows), "leave it out for the maximum")
	}
	return mptcp.New(f.cfg)
}

// setupReport is the output of `cleat mptcp setup --json`.
type setupReport struct {
	Done    bool     `json:"done"` // false with --plan
	Steps   []string `json:"steps"`
	Used    []string `json:"used"`
	Left    []string `json:"left"`
	Notes   []string `json:"notes"`
	Summary string   `json:"summary,omitempty"`
}

func (f *setupFlags) print(out io.Writer, plan *mptcp.Plan) error {
	limits := link.MPTCPLimits{Subflows: cmp.Or(f.cfg.Limits, f.cfg.Most.Subflows)}
	r := setupReport{
		Done: !f.plan, Steps: term.OrEmpty(plan.Steps()), Used: term.OrEmpty(plan.Used), Left: term.OrEmpty(plan.Unused), Notes: term.OrEmpty(plan.Notes),
		Summary: unusedText(len(plan.Used)+len(plan.Unused), len(plan.Unused), f.cfg.Most, limits),
	}
	if f.asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	var b strings.Builder
	if len(r.Steps) == 0 {
		b.WriteString("nothing to do\n")
	}
	for _, s := range r.Steps {
		b.WriteString(s + "\n")
	}
	for _, n := range r.Notes {
		b.WriteString("note: " + n + "\n")
	}
	if r.Summary != "" {
		fmt.Fprintf(&b, "%s\nnot used: %s; %s\n", r.Summary, strings.Join(r.Left, ", "), tunnelHint)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// tunnelHint names the alternative that has no such limit.
const tunnelHint = "`cleat tunnel` uses any number of links, and carries UDP as well"
