package traffic

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"cleat/cli/hint"
	"cleat/internal/columns"
	"cleat/internal/rate"
	"cleat/traffic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// New returns the command traffic.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "traffic COMMAND",
		Short: "generate and count traffic between two ends",
		Long: `Generates and counts traffic between a server, "cleat traffic serve", and a
client, one of the other commands. One port carries everything: control, TCP and
UDP. Traffic is counted by its receiver.`,
		Example: `  cleat traffic serve --listen :5210
  cleat traffic tcp 192.0.2.1 --duration 10s --streams 4
  cleat traffic udp 192.0.2.1 --rate 1G --message 8192
  cleat traffic udp 192.0.2.1 --search
  cleat traffic rr 192.0.2.1 --rate 1000 --json`,
		Args: hint.NoCommand,
		RunE: hint.NoCommand,
	}
	cmd.AddCommand(newServe())
	for _, w := range traffic.Works() {
		cmd.AddCommand(newClient(w))
	}
	cmd.AddCommand(newRelay(), newProxy(), newHello())
	return cmd
}

// engineNames returns the values of --engine.
func engineNames() string {
	var names []string
	for _, e := range traffic.Engines() {
		names = append(names, string(e))
	}
	return strings.Join(names, ", ")
}

func newServe() *cobra.Command {
	var cfg traffic.ServeConfig
	var asJSON bool
	var engine string
	cpu := -1
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "serve tests of clients",
		Long: `Serves the tests of any number of clients. With --json each line is an object:
first {"listening":ADDRESS}, then one for each test that ended.`,
		Example: `  cleat traffic serve --listen 192.0.2.1:5210
  cleat traffic serve --once --control unix:/tmp/control --cpu 1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := pin(cpu); err != nil {
				return err
			}
			spareProcessors(serverStreams)
			cfg.Engine = traffic.Engine(engine)
			say := newAnnouncer(cmd.OutOrStdout(), asJSON)
			cfg.Ready, cfg.Done = say.ready, say.done
			return withHint(traffic.Serve(cmd.Context(), cfg))
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Listen, "listen", fmt.Sprintf(":%d", traffic.DefaultPort), "listen at `ADDRESS:PORT`, by TCP and UDP")
	f.StringVar(&cfg.Control, "control", "", "accept control connections at the Unix socket `unix:FILE` as well")
	f.BoolVar(&cfg.Once, "once", false, "exit after the first test")
	f.BoolVar(&asJSON, "json", false, "print JSON, one object on a line")
	f.IntVar(&cpu, "cpu", -1, "run only on processor `NUMBER`; -1 is any")
	f.StringVar(&engine, "engine", string(traffic.EngineCleat), "`NAME` of the traffic generator: "+engineNames())
	return cmd
}

// announcer prints the messages of a server, one on a line.
type announcer struct {
	mu     sync.Mutex
	w      io.Writer
	asJSON bool
}

func newAnnouncer(w io.Writer, asJSON bool) *announcer { return &announcer{w: w, asJSON: asJSON} }

func (a *announcer) ready(address string) {
	a.line(struct {
		Listening string `json:"listening"`
	}{address}, "listening at "+address)
}

func (a *announcer) done(s traffic.Served) {
	text := fmt.Sprintf("%s with %s: done", s.Work, s.Client)
	if s.Error != "" {
		text = fmt.Sprintf("%s with %s: %s", s.Work, s.Client, s.Error)
	}
	a.line(s, text)
}

func (a *announcer) line(v any, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.asJSON {
		json.NewEncoder(columns.JSON(a.w)).Encode(v) // without a reader, the test goes on
		return
	}
	fmt.Fprintln(a.w, columns.Plain(text)) // clients choose the text of their errors
}

// spareProcessors raises GOMAXPROCS for streams that block in system calls without
// telling the Go scheduler, each of which keeps one of its processors (see
// traffic/stream.go). After --cpu there may be only one real processor.
func spareProcessors(streams int) {
	const others = 3 // control, timers, garbage collector
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), streams+others))
}

// serverStreams is the number of simultaneous streams that a server is prepared for.
const serverStreams = 32

// pin restarts the program on one processor. -1 leaves it on all.
func pin(cpu int) error {
	if cpu == -1 {
		return nil
	}
	return traffic.Pin(cpu)
}

// withHint marks invalid parameters as usage errors, and adds a hint if nobody listens.
func withHint(err error) error {
	var bad *traffic.ConfigError
	if errors.As(err, &bad) {
		name := "--" + bad.Field
		if bad.Field == "address" {
			name = "ADDRESS"
		}
		return hint.Usagef("%s %q: want %s", name, bad.Value, bad.Want)
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return hint.With(err, "nobody listens there: start `cleat traffic serve --listen ADDRESS:PORT` at the other end")
	}
	return err
}

// flags are the flags of a client that traffic.Config does not hold as they are typed.
type flags struct {
	cfg    traffic.Config
	engine string
	rate   string
	gate   bool
	cpu    int
	asJSON bool
}

// about has the help of each client.
var about = map[traffic.Work]struct{ short, long string }{
	traffic.TCP: {"send streams as fast as possible", `Sends streams for --duration and prints what arrived, by the receiver's clock.
Congestion control, MSS and retransmissions are those that the kernel reports.`},
	traffic.UDP: {"send datagrams at a rate, or within a loss bound", `Sends datagrams at --rate and prints what arrived, with loss, jitter (RFC 3550),
reordering and duplicates. Datagrams longer than the MTU are fragmented. With
--search, up to 12 trials, of a 12th of --duration each, find the highest rate
whose loss stays within --loss-bound, and up to 4 of a third of it confirm it,
each a little slower. Then a run of --duration at that rate gives the result,
whatever it loses.`},
	traffic.RR: {"send requests and responses over TCP", `Sends a request, waits for the response, and repeats. With --rate, requests have
a schedule, and latency counts from the scheduled time, even if the request
before was late. What is under way or due when --duration is over still counts
in the latency: the client waits for it for up to a second. The rate counts what
ended in time.`},
	traffic.UDPRR: {"send requests and responses over UDP", `Like rr, over UDP. A response that does not arrive in time counts as lost; it
does not affect the latency.`},
	traffic.CRR: {"connect, send a request and a response, close", `Opens a connection for each request. The server closes first, so that the client
does not run out of ports.`},
	traffic.Probe: {"find the packet sizes that arrive", `Sends unfragmented packets of the link's full size, and a short stream. Prints
the MTU of the link and of the path, and whether the path is a black hole, in
which small packets arrive and full-size ones do not. Takes about two seconds.`},
}

func newClient(w traffic.Work) *cobra.Command {
	f := flags{cpu: -1}
	f.cfg.Work = w
	about := about[w]
	cmd := &cobra.Command{
		Use:     string(w) + " ADDRESS",
		Short:   about.short,
		Long:    about.long,
		Example: fmt.Sprintf("  cleat traffic %s 192.0.2.1\n  cleat traffic %s '[2001:db8::1]:5210' --json", w, w),
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.cfg.Address = args[0]
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	f.common(flags)
	f.special(flags)
	return cmd
}

func (f *flags) common(flags *pflag.FlagSet) {
	flags.BoolVar(&f.asJSON, "json", false, "print the result as one line of JSON")
	flags.StringVar(&f.cfg.Control, "control", "", "control the server at the Unix socket `unix:FILE` instead of by TCP")
	flags.IntVar(&f.cpu, "cpu", -1, "run only on processor `NUMBER`; -1 is any")
	if f.cfg.Work == traffic.Probe {
		return
	}
	flags.DurationVar(&f.cfg.Duration, "duration", traffic.DefaultDuration, "count for `DURATION`")
	flags.DurationVar(&f.cfg.Omit, "omit", 0, "count only after `DURATION`")
	flags.BoolVar(&f.gate, "start-on-stdin", false, "connect first, print a line, then read from standard input when to begin: the Unix time in nanoseconds, or +NANOSECONDS from then on")
	if err := flags.MarkHidden("start-on-stdin"); err != nil { // it is for cleat bench
		panic(err) // there is no such flag
	}
	flags.IntVar(&f.cfg.Streams, "streams", 1, "use `NUMBER` sockets at the same time")
	flags.IntVar(&f.cfg.MessageBytes, "message", traffic.DefaultMessage(f.cfg.Work), "write `BYTES` at a time: one datagram, request or response")
	flags.IntVar(&f.cfg.BufferBytes, "buffer", 0, "set the socket buffers to `BYTES`; 0 is automatic")
	flags.StringVar(&f.engine, "engine", string(traffic.EngineCleat), "`NAME` of the traffic generator: "+engineNames())
}

func (f *flags) special(flags *pflag.FlagSet) {
	isTCP := f.cfg.Work == traffic.TCP || f.cfg.Work == traffic.RR || f.cfg.Work == traffic.CRR
	if isTCP {
		flags.StringVar(&f.cfg.Congestion, "congestion", "", "`NAME` of the TCP congestion control of both ends, e.g. cubic (default: the kernel's)")
		flags.IntVar(&f.cfg.MSS, "mss", 0, "limit TCP segments to `BYTES`; 0 is the kernel's choice")
		flags.BoolVar(&f.cfg.MPTCP, "mptcp", false, "use MPTCP sockets")
	}
	switch f.cfg.Work {
	case traffic.TCP:
		flags.BoolVar(&f.cfg.Reverse, "reverse", false, "let the server send")
		flags.DurationVar(&f.cfg.Early, "early", 0, earlyUsage)
	case traffic.UDP:
		flags.BoolVar(&f.cfg.Reverse, "reverse", false, "let the server send")
		flags.DurationVar(&f.cfg.Early, "early", 0, earlyUsage)
		flags.StringVar(&f.rate, "rate", "0", "offer a payload of `RATE` bit/s, e.g. 500M or 10G; 0 is as fast as possible")
		flags.BoolVar(&f.cfg.GSO, "gso", false, "pass many datagrams to the kernel at a time (UDP_SEGMENT, UDP_GRO)")
		flags.BoolVar(&f.cfg.NoChecksum, "no-checksum", false, "send without UDP checksum (IPv4)")
		flags.BoolVar(&f.cfg.Search, "search", false, "search for the highest rate within the loss bound")
		flags.Float64Var(&f.cfg.LossBound, "loss-bound", traffic.DefaultLossBound, "with --search: accept a loss of `FRACTION`")
	case traffic.RR, traffic.UDPRR, traffic.CRR:
		flags.StringVar(&f.rate, "rate", "0", "start `NUMBER` transactions per second; with 0, each starts when the last has ended")
		if f.cfg.Work == traffic.UDPRR {
			flags.DurationVar(&f.cfg.Patience, "patience", 0, "count a response as lost after `DURATION`; 0 is 250 ms or four idle round trips")
		}
	}
}

const earlyUsage = "report separately what arrives within `DURATION` of the first byte, and the longest pause; 0 is off"

func (f *flags) config() (traffic.Config, error) {
	cfg := f.cfg
	cfg.Engine = traffic.Engine(f.engine)
	rate, err := parseRate(f.rate)
	if err != nil {
		return cfg, err
	}
	if cfg.Work == traffic.UDP {
		cfg.BitsPerSecond = rate
	} else {
		cfg.TransactionsPerSecond = rate
	}
	switch {
	case cfg.Work == traffic.Probe:
	case cfg.Duration <= 0:
		return cfg, hint.Usagef("--duration %s: want more than 0s", cfg.Duration)
	case cfg.Streams <= 0:
		return cfg, hint.Usagef("--streams %d: want 1 or more", cfg.Streams)
	case cfg.MessageBytes <= 0:
		return cfg, hint.Usagef("--message %d: want 1 or more bytes", cfg.MessageBytes)
	}
	if f.gate {
		cfg.Gate = gate
	}
	return cfg, cfg.Validate()
}

// gate reports that the client is connected, and waits for a line with the start time.
func gate(ctx context.Context) (time.Time, error) {
	fmt.Println(`{"ready":true}`)
	line := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		line <- strings.TrimSpace(text)
	}()
	select {
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	case text := <-line:
		nanos, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return time.Time{}, fmt.Errorf("read the start time: %q is not a Unix time in nanoseconds", text)
		}
		if strings.HasPrefix(text, "+") { // from a machine with another clock
			return time.Now().Add(time.Duration(nanos)), nil
		}
		return time.Unix(0, nanos), nil
	}
}

// maxRate is a limit in bit/s above any existing link.
const maxRate = 1e15

// parseRate parses a number with a decimal suffix. "" and "0" mean as fast as possible.
func parseRate(text string) (float64, error) {
	if text == "" || text == "0" {
		return 0, nil
	}
	v, err := rate.Parse(text)
	if err != nil || v > maxRate {
		return 0, hint.Usagef("--rate %q: want a number with an optional k, M, G or T", text)
	}
	return v, nil
}

func (f *flags) run(ctx context.Context, out, progress io.Writer) error {
	cfg, err := f.config()
	if err != nil {
		return withHint(err)
	}
	if err := pin(f.cpu); err != nil {
		return err
	}
	spareProcessors(cfg.Streams)
	if !f.asJSON {
		cfg.Progress = func(line string) { fmt.Fprintln(progress, columns.Plain(line)) }
	}
	r, err := traffic.Run(ctx, cfg)
	if err != nil {
		return withHint(err)
	}
	return f.print(out, r)
}

// print writes a result. The server has chosen parts of its text.
func (f *flags) print(out io.Writer, r traffic.Result) error {
	if f.asJSON {
		return json.NewEncoder(columns.JSON(out)).Encode(r)
	}
	_, err := io.WriteString(columns.Text(out), r.Text())
	return err
}

// newProxy returns the command proxy, which is the userland proxy of published ports in
// benchmarks.
func newProxy() *cobra.Command {
	var listen, to string
	cmd := &cobra.Command{
		Use:    "proxy",
		Short:  "copy TCP and UDP from one address to another",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, err := netip.ParseAddrPort(listen)
			if err != nil {
				return hint.Usagef("--listen: %w", err)
			}
			dest, err := netip.ParseAddrPort(to)
			if err != nil {
				return hint.Usagef("--to: %w", err)
			}
			return traffic.Forward(cmd.Context(), from, dest)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "listen at `ADDRESS:PORT`")
	cmd.Flags().StringVar(&to, "to", "", "copy to `ADDRESS:PORT`")
	return cmd
}

// newHello returns the command hello. `cleat bench` starts it inside a network that is
// being set up.
func newHello() *cobra.Command {
	return &cobra.Command{
		Use:    "hello ADDRESS",
		Short:  "connect, and print the time of the first byte that returns, in nanoseconds of CLOCK_MONOTONIC",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := traffic.Hello(cmd.Context(), args[0])
			if err != nil {
				return withHint(err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), at.Nanoseconds())
			return err
		},
	}
}
