package traffic

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"cleat/cli/hint"
	"cleat/cli/term"
	"cleat/traffic"

	"github.com/spf13/cobra"
)

// relayFlags are the flags of `cleat traffic relay`. Each list has one value for each
// pair of devices, or one for all.
type relayFlags struct {
	pairs  int
	delay  []string
	jitter []string
	loss   []string
	seed   uint64
	stats  bool
	zoo    zooFlags
}

// firstDevice is the descriptor of the first device that the relay inherits.
const firstDevice = 3

// newRelay returns the command relay for `cleat bench`, which passes the devices.
func newRelay() *cobra.Command {
	var f relayFlags
	cmd := &cobra.Command{
		Use:    "relay",
		Short:  "join pairs of TUN or TAP devices, inherited as descriptors 3 and 4, 5 and 6, …",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.zoo.seed > 0 {
				return f.zoo.relay(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
			}
			if !cmd.Flags().Changed("delay") && !cmd.Flags().Changed("jitter") && !cmd.Flags().Changed("loss") && f.pairs == 1 {
				_, _, err := traffic.Relay(cmd.Context(), firstDevice, firstDevice+1)
				return err
			}
			stats, err := f.slow(cmd.Context())
			if err == nil && f.stats {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(stats)
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&f.pairs, "pairs", 1, "join `NUMBER` pairs of devices")
	flags.StringSliceVar(&f.delay, "delay", nil, "delay packets by `DURATION`; one for all pairs, or one for each")
	flags.StringSliceVar(&f.jitter, "jitter", nil, "add a random delay of up to `DURATION`")
	flags.StringSliceVar(&f.loss, "loss", nil, "drop `FRACTION` of the packets, e.g. 1% or 0.01")
	flags.Uint64Var(&f.seed, "seed", 1, "`SEED` of random losses and delays")
	flags.BoolVar(&f.stats, "stats", false, "print counters as JSON at the end")
	f.zoo.define(flags)
	return cmd
}

func (f relayFlags) slow(ctx context.Context) ([]traffic.SlowStats, error) {
	if f.pairs < 1 {
		return nil, hint.Usagef("--pairs %d: want 1 or more", f.pairs)
	}
	links := make([]traffic.SlowLink, f.pairs)
	for i := range links {
		l := &links[i]
		l.A, l.B = firstDevice+2*i, firstDevice+2*i+1
		var err error
		if l.Delay, err = pick("delay", f.delay, i, f.pairs, time.ParseDuration); err != nil {
			return nil, err
		}
		if l.Jitter, err = pick("jitter", f.jitter, i, f.pairs, time.ParseDuration); err != nil {
			return nil, err
		}
		if l.Loss, err = pick("loss", f.loss, i, f.pairs, parseShare); err != nil {
			return nil, err
		}
	}
	stats, err := traffic.RelaySlow(ctx, links, f.seed)
	return stats, withHint(err)
}

// pick parses the value for pair i. An empty list means zero.
func pick[T any](flag string, list []string, i, pairs int, parse func(string) (T, error)) (T, error) {
	var zero T
	switch len(list) {
	case 0:
		return zero, nil
	case 1:
		i = 0
	case pairs:
	default:
		return zero, hint.Usagef("--%s has %s: want one, or one for each of %s", flag, term.Count(len(list), "value"), term.Count(pairs, "pair"))
	}
	v, err := parse(list[i])
	if err != nil {
		return zero, hint.Usagef("--%s: %w", flag, err)
	}
	return v, nil
}

// parseShare parses "1%" or "0.01".
func parseShare(text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, fmt.Errorf("share %q: want a number such as 0.01, or 1%%", text)
	}
	if percent {
		v /= 100
	}
	return v, nil
}
