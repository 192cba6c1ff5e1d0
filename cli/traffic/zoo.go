package traffic

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strconv"
	"time"

	"cleat/cli/hint"
	"cleat/internal/linkzoo"
	"cleat/internal/rate"
	"cleat/traffic"

	"github.com/spf13/pflag"
)

// zooFlags are the flags of `cleat traffic relay` that make its links those of a case of the
// zoo.
type zooFlags struct {
	seed uint64
	cap  string
	link int
}

func (f *zooFlags) define(flags *pflag.FlagSet) {
	flags.Uint64Var(&f.seed, "zoo", 0, "make the links those of the random case of `SEED`; standard input and output control them")
	flags.StringVar(&f.cap, "zoo-cap", "", "lower the rates of the case so that their sum is at most `RATE` bit/s")
	flags.IntVar(&f.link, "zoo-link", 0, "use only link `NUMBER`, from 1 (default: all)")
}

// relay runs a relay of shaped links until ctx ends or in is at its end. A line of in that is
// a time in nanoseconds since 1970 begins the case at that time. The line "report" prints
// what the relay has done so far, as one line of JSON.
func (f zooFlags) relay(ctx context.Context, in io.Reader, out io.Writer) error {
	c := linkzoo.New(f.seed)
	if f.cap != "" {
		sum, err := rate.Parse(f.cap)
		if err != nil {
			return hint.Usagef("--zoo-cap: %w", err)
		}
		c = c.Capped(sum)
	}
	if f.link < 0 || f.link > len(c.Links) {
		return hint.Usagef("--zoo-link %d: the case has %d links", f.link, len(c.Links))
	}
	links := c.Links
	if f.link > 0 {
		links = links[f.link-1 : f.link]
	}
	var shaped []traffic.ShapedLink
	for i, l := range links {
		shaped = append(shaped, traffic.ShapedLink{A: firstDevice + 2*i, B: firstDevice + 2*i + 1, Link: l})
	}
	r, err := traffic.NewShapedRelay(shaped, f.seed)
	if err != nil {
		return err
	}
	// A collection takes both processors of a small machine, and the links stand still
	// meanwhile. The relay reuses its buffers, and the links' queues bound their number.
	debug.SetGCPercent(-1)
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { cancel(control(r, in, out)) }()
	if err := r.Run(running); err != nil || ctx.Err() != nil {
		return err
	}
	if err := context.Cause(running); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// control does what the lines of in say, until its end.
func control(r *traffic.ShapedRelay, in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if line := lines.Text(); line != "report" {
			at, err := strconv.ParseInt(line, 10, 64)
			if err != nil {
				return fmt.Errorf("control line %q: want a time in nanoseconds, or \"report\"", line)
			}
			r.Begin(time.Unix(0, at))
			continue
		}
		if err := json.NewEncoder(out).Encode(r.Report()); err != nil {
			return err
		}
	}
	return lines.Err()
}
