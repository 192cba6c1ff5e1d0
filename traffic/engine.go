package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"cleat/internal/program"
)

// foreign is another program that generates and counts traffic.
type foreign interface {
	// program returns the command, which is also the name of its Debian package.
	program() string
	// servers returns the command lines that together serve TCP and UDP.
	servers(host, port string) [][]string
	// client returns the command line of one test.
	client(cfg Config, host, port string) ([]string, error)
	// parse parses the client's output.
	parse(out []byte, r *Result) error
}

func readOutput(engine foreign, out []byte, r *Result) error {
	if err := engine.parse(out, r); err != nil {
		return err
	}
	for _, v := range []float64{r.DurationSeconds, r.BitsPerSecond, r.SentBitsPerSecond, r.PacketsPerSecond, r.LossFraction} {
		if !(v >= 0 && v <= math.MaxFloat64) { // JSON has neither NaN nor infinity
			return fmt.Errorf("parse %s's output: invalid number %v", engine.program(), v)
		}
	}
	return nil
}

func foreignEngine(e Engine) foreign {
	if e == EngineIperf {
		return iperf2{}
	}
	return iperf3{}
}

// ErrNoProgram means that an engine's program is not installed.
var ErrNoProgram = errors.New("program not found")

func findProgram(name string) (string, error) {
	path, err := program.Find(name)
	if err != nil {
		return "", fmt.Errorf("%w: %s (Debian package %s)", ErrNoProgram, name, name)
	}
	return path, nil
}

// command returns a child process that is killed when ctx ends.
func command(ctx context.Context, path string, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// serveForeign runs the engine's servers until ctx or one of them ends.
func serveForeign(ctx context.Context, cfg ServeConfig) error {
	if cfg.Once {
		return &ConfigError{Field: "once", Value: "true", Want: "engine cleat: other servers do not report the end of a test"}
	}
	if cfg.Control != "" {
		return &ConfigError{Field: "control", Value: cfg.Control, Want: "engine cleat: other servers have no control socket"}
	}
	engine := foreignEngine(cfg.Engine)
	path, err := findProgram(engine.program())
	if err != nil {
		return err
	}
	at, err := resolveListen(ctx, cfg.Listen)
	if err != nil {
		return err
	}
	host := at.Addr().String()
	if at.Addr().IsUnspecified() {
		host = ""
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	ended := make(chan error, 2)
	for _, args := range engine.servers(host, fmt.Sprint(at.Port())) {
		wg.Go(func() { ended <- keepServing(ctx, path, args) })
	}
	listening := make(chan bool, 1)
	wg.Go(func() { listening <- awaitListening(ctx, at.Port()) })
	for err == nil && ctx.Err() == nil {
		select {
		case err = <-ended:
		case <-ctx.Done():
		case ok := <-listening:
			if ok && cfg.Ready != nil {
				cfg.Ready(at.String())
			}
		}
	}
	interrupted := ctx.Err() != nil
	cancel()
	wg.Wait()
	if interrupted {
		return nil // the servers were killed, so their errors are expected
	}
	return err
}

// pacedByDefault returns a warning about iperf3, which changes the congestion control of
// established connections.
func pacedByDefault(cfg Config, usual string) string {
	if cfg.Engine != EngineIperf3 || cfg.Work != TCP || cfg.Congestion == "" || cfg.Congestion == usual || !strings.HasPrefix(usual, "bbr") {
		return ""
	}
	return fmt.Sprintf("iperf3's connections start with the kernel's default, %s, and stay paced with %s, at half the rate or less; run `sysctl net.ipv4.tcp_congestion_control=%[2]s` first to prevent this", usual, cfg.Congestion)
}

// keepServing runs a server and restarts it when it ends, as the UDP server of iperf
// 2.1.8 does after a test or two because of an assertion. A server that ends immediately
// is an error.
func keepServing(ctx context.Context, path string, args []string) error {
	const atOnce = 100 * time.Millisecond
	for {
		cmd := command(ctx, path, args)
		stderr := head{most: maxErrors}
		cmd.Stderr = &stderr
		began := time.Now()
		err := startLocked(cmd)
		if ctx.Err() != nil || time.Since(began) < atOnce {
			return fmt.Errorf("run %s: %w: %s", path, cmp.Or(err, errServerEnded), firstLine(string(stderr.kept)))
		}
	}
}

var errServerEnded = errors.New("it ended")

// startLocked runs cmd on a thread that lives as long as cmd, because Pdeathsig is bound
// to the thread that started the child.
func startLocked(cmd *exec.Cmd) (err error) {
	onOwnThread(func() { err = cmd.Run() })
	return err
}

// awaitListening waits until a socket listens on port. It returns false if ctx ends. It
// reads the kernel's list instead of connecting: iperf3 takes a connection without a test
// for a broken client, and listens anew.
func awaitListening(ctx context.Context, port uint16) bool {
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for {
		for _, file := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
			if b, err := os.ReadFile(file); err == nil && listensAt(string(b), port) {
				return true
			}
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return false
		}
	}
}

// listensAt searches /proc/net/tcp for a listening socket.
func listensAt(table string, port uint16) bool {
	const tcpListen = "0A" // TCP_LISTEN
	want := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		// sl local_address rem_address st …
		if f := strings.Fields(line); len(f) > 3 && f[3] == tcpListen && strings.HasSuffix(f[1], want) {
			return true
		}
	}
	return false
}

// runForeign runs one test with another engine's client.
func (c *client) runForeign(ctx context.Context) error {
	engine := foreignEngine(c.cfg.Engine)
	path, err := findProgram(engine.program())
	if err != nil {
		return err
	}
	if err := foreignLimits(c.cfg); err != nil {
		return err
	}
	if w := pacedByDefault(c.cfg, usualCongestion()); w != "" {
		c.result.Warnings = append(c.result.Warnings, w)
	}
	host, port, err := splitAddress("address", c.cfg.Address)
	if err != nil {
		return err
	}
	args, err := engine.client(c.cfg, host, fmt.Sprint(port))
	if err != nil {
		return err
	}
	if err := c.awaitStart(ctx, nil); err != nil {
		return err
	}
	c.startCPU()
	out, err := runClient(ctx, path, args, c.cfg.Omit+c.cfg.Duration+2*reportGrace)
	c.stopCPU()
	if perr := readOutput(engine, out, &c.result); perr != nil {
		return fmt.Errorf("run %s %s: %w", engine.program(), strings.Join(args, " "), cmp.Or(err, perr))
	}
	c.result.setCost()
	return nil
}

// foreignLimits rejects options of the built-in engine.
func foreignLimits(cfg Config) error {
	for _, only := range []struct {
		name string
		set  bool
	}{
		{"control", cfg.Control != ""}, {"gso", cfg.GSO}, {"no-checksum", cfg.NoChecksum},
		{"search", cfg.Search}, {"mptcp", cfg.MPTCP},
	} {
		if only.set {
			return &ConfigError{Field: only.name, Value: "set", Want: fmt.Sprintf("engine cleat: %s does not support it", cfg.Engine)}
		}
	}
	return nil
}

// runClient runs a client and returns its standard output, also after a failure.
func runClient(ctx context.Context, path string, args []string, patience time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := command(ctx, path, args)
	stdout, stderr := head{most: maxReport}, head{most: maxErrors}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := startLocked(cmd)
	if cause := context.Cause(ctx); cause != nil {
		return stdout.kept, cause
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, firstLine(string(stderr.kept)))
	}
	return stdout.kept, err
}

// head keeps the first bytes of a program's output, much of which is controlled by the
// peer.
type head struct {
	most int
	kept []byte
}

const (
	maxReport = 256 << 20 // bytes: iperf3 reports each second of a day
	maxErrors = 64 << 10  // bytes
)

func (h *head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), h.most-len(h.kept))]...)
	return len(p), nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
