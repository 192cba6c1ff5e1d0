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

func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "traffic COMMAND",
		Short: "make and count traffic between two ends, without an experiment",
		Long: `Makes and counts traffic between a server, "cleat traffic serve", and a client,
any of the other commands. One port carries everything: the control connection,
TCP and UDP. What is counted is counted where it arrives.`,
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

// engineNames are the values of --engine.
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
		Short: "take part in the tests that clients ask for",
		Long: `Listens, and takes part in the tests that clients ask for, any number at once.
With --json each line is an object: first {"listening":ADDR}, then one for each
test that ended.`,
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

// announcer prints what a server has to say, one line at a time.
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
		json.NewEncoder(columns.JSON(a.w)).Encode(v) // a reader that has gone away is no error of the test
		return
	}
	fmt.Fprintln(a.w, columns.Plain(text)) // clients choose the text of their errors
}

// spareProcessors makes room for streams that block in system calls without
// telling the Go scheduler, which keep one of its processors each (see
// traffic/stream.go): the number of real ones is as few as one after --cpu.
func spareProcessors(streams int) {
	const others = 3 // control, timers, the collector
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), streams+others))
}

// serverStreams is how many streams at once a server is prepared for.
const serverStreams = 32

// pin restarts the program on one processor; -1 leaves it where it is.
func pin(cpu int) error {
	if cpu == -1 {
		return nil
	}
	return traffic.Pin(cpu)
}

// withHint marks parameters that no test can run with as mistakes in the
// command line, and says what to start where nobody listens.
func withHint(err error) error {
	var bad *traffic.ConfigError
	if errors.As(err, &bad) {
		return hint.Usagef("%w", bad)
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return hint.With(err, "nobody listens there: start `cleat traffic serve --listen ADDR` at the other end")
	}
	return err
}

// flags are the flags of a client that Config does not hold as they are
// typed.
type flags struct {
	cfg     traffic.Config
	engine  string
	rate    string
	startAt int64
	gate    bool
	cpu     int
	asJSON  bool
}

// about are the words of each client's help.
var about = map[traffic.Work]struct{ short, long string }{
	traffic.TCP: {"streams, as fast as they go", `Sends streams for --duration and prints what arrived. The receiver's clock
decides. Congestion control, MSS and segments sent again are what the kernel
says of them.`},
	traffic.UDP: {"datagrams at a rate, or at the highest within a loss", `Sends datagrams at --rate and prints what arrived, with loss, jitter (RFC 3550),
reordering and duplicates. Datagrams longer than the MTU are fragmented. With
--search, trials within --duration look for the highest rate whose loss stays
within --loss-bound.`},
	traffic.RR: {"request and response over TCP", `Sends a request, waits for the response, and so on. With --rate requests have a
schedule: latency counts from the intended moment, however late the one before
was.`},
	traffic.UDPRR: {"request and response over UDP", `As rr, over UDP. A response that does not come in time counts as lost, and not
in the latency.`},
	traffic.CRR: {"connect, request, response, close", `Makes a connection for each request. The server closes first, so that the client
does not run out of ports.`},
	traffic.Probe: {"which packet sizes arrive", `Sends packets of the link's full size, unfragmented, and a short stream. Says
what the link's MTU is, what the path's is, and whether it is a black hole:
small packets arrive, full-size ones do not. Ends within about two seconds.`},
}

func newClient(w traffic.Work) *cobra.Command {
	f := flags{cpu: -1}
	f.cfg.Work = w
	about := about[w]
	cmd := &cobra.Command{
		Use:     string(w) + " ADDR",
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
	flags.BoolVar(&f.gate, "start-on-stdin", false, "connect first, print a line, then read from standard input when to begin, as for --start-at")
	flags.Int64Var(&f.startAt, "start-at", 0, "connect first, then begin at this Unix time in `NANOSECONDS`")
	for _, internal := range []string{"start-on-stdin", "start-at"} { // for cleat bench
		if err := flags.MarkHidden(internal); err != nil {
			panic(err) // there is no such flag
		}
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
		flags.StringVar(&f.rate, "rate", "0", "start `NUMBER` transactions per second; 0 is each after the last")
	}
}

const earlyUsage = "report separately what arrives within `DURATION` of the first byte, and the longest pause; 0 is off"

// config checks the flags and turns them into a configuration.
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
	if f.startAt != 0 {
		cfg.StartAt = time.Unix(0, f.startAt)
	}
	if f.gate {
		cfg.Gate = gate
	}
	return cfg, cfg.Validate()
}

// gate says that the client is connected, and waits for a line that says when
// to begin.
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
			return time.Time{}, fmt.Errorf("read when to begin: %q is not a Unix time in nanoseconds", text)
		}
		return time.Unix(0, nanos), nil
	}
}

// maxRate is in bit/s: none that is faster has been built.
const maxRate = 1e15

// parseRate reads a number with a decimal suffix; "" and "0" are as fast as can
// be.
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

// print writes a result, of which the server has chosen some of the words.
func (f *flags) print(out io.Writer, r traffic.Result) error {
	if f.asJSON {
		return json.NewEncoder(columns.JSON(out)).Encode(r)
	}
	_, err := io.WriteString(columns.Text(out), r.Text())
	return err
}

// newProxy is for the benchmark: a published port's userland proxy.
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

// newHello is for the benchmark, which starts it inside a network that
// is just being made.
func newHello() *cobra.Command {
	return &cobra.Command{
		Use:    "hello ADDR",
		Short:  "connect, and print when the first byte came back, in nanoseconds of CLOCK_MONOTONIC",
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
