package traffic_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cleat/traffic"
)

// serving runs a server until the test ends. Port 0 becomes a free one.
func serving(t *testing.T, cfg traffic.ServeConfig) (address string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan string, 1), make(chan error, 1)
	cfg.Ready = func(at string) { ready <- at }
	go func() { done <- traffic.Serve(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	select {
	case address = <-ready:
		return address
	case err := <-done:
		done <- nil
		t.Fatalf("Serve: %v", err)
		return ""
	}
}

// run calls traffic.Run with a short duration.
func run(t *testing.T, cfg traffic.Config) traffic.Result {
	t.Helper()
	if cfg.Duration == 0 {
		cfg.Duration = 50 * time.Millisecond
	}
	r, err := traffic.Run(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// needIPv6 skips the test if loopback has no IPv6 address.
func needIPv6(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6: ", err)
	}
	l.Close()
}

func TestEveryWork(t *testing.T) {
	works := []struct {
		name  string
		cfg   traffic.Config
		check func(t *testing.T, r traffic.Result)
	}{
		{"tcp", traffic.Config{Work: traffic.TCP}, receivedBytes},
		{"tcp, four streams", traffic.Config{Work: traffic.TCP, Streams: 4}, receivedBytes},
		{"tcp, ramp", traffic.Config{Work: traffic.TCP, Omit: 30 * time.Millisecond}, receivedBytes},
		{"tcp, reversed", traffic.Config{Work: traffic.TCP, Reverse: true, Streams: 2}, receivedBytes},
		{"tcp, one byte", traffic.Config{Work: traffic.TCP, MessageBytes: 1}, receivedBytes},
		{"tcp, buffers", traffic.Config{Work: traffic.TCP, BufferBytes: 1 << 20, Congestion: "reno"}, receivedBytes},
		{"udp", traffic.Config{Work: traffic.UDP, BitsPerSecond: 20e6}, lossless},
		{"udp, two streams", traffic.Config{Work: traffic.UDP, BitsPerSecond: 20e6, Streams: 2}, lossless},
		{"udp, ramp", traffic.Config{Work: traffic.UDP, BitsPerSecond: 20e6, Omit: 30 * time.Millisecond}, lossless},
		{"udp, 8 KiB", traffic.Config{Work: traffic.UDP, BitsPerSecond: 20e6, MessageBytes: 8192}, lossless},
		{"udp, smallest", traffic.Config{Work: traffic.UDP, BitsPerSecond: 1e6, MessageBytes: 32}, lossless},
		{"udp, segments", traffic.Config{Work: traffic.UDP, BitsPerSecond: 100e6, GSO: true, MessageBytes: 1400}, lossless},
		{"udp, reversed", traffic.Config{Work: traffic.UDP, BitsPerSecond: 20e6, Reverse: true}, lossless},
		{"udp, reversed segments", traffic.Config{Work: traffic.UDP, BitsPerSecond: 100e6, Reverse: true, GSO: true, MessageBytes: 1400}, lossless},
		{"udp, as fast as possible", traffic.Config{Work: traffic.UDP}, receivedBytes},
		{"udp, search", traffic.Config{Work: traffic.UDP, Search: true, Duration: 300 * time.Millisecond, LossBound: 0.9}, searched},
		{"rr", traffic.Config{Work: traffic.RR}, transacted},
		{"rr, schedule", traffic.Config{Work: traffic.RR, TransactionsPerSecond: 1000, Streams: 2}, transacted},
		{"rr, large", traffic.Config{Work: traffic.RR, MessageBytes: 100_000}, transacted},
		{"udprr", traffic.Config{Work: traffic.UDPRR}, transacted},
		{"udprr, schedule", traffic.Config{Work: traffic.UDPRR, TransactionsPerSecond: 1000, Streams: 2}, transacted},
		{"crr", traffic.Config{Work: traffic.CRR}, transacted},
		{"crr, two at once", traffic.Config{Work: traffic.CRR, Streams: 2, MessageBytes: 1000}, transacted},
		{"probe", traffic.Config{Work: traffic.Probe}, passes},
	}
	control := "unix:" + filepath.Join(t.TempDir(), "control")
	servers := []struct{ name, listen, control string }{
		{"IPv4", "127.0.0.1:0", ""},
		{"IPv6", "[::1]:0", ""},
		{"every address", ":0", ""},
		{"out of band", "127.0.0.1:0", control},
	}
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			if strings.Contains(s.listen, "::") {
				needIPv6(t)
			}
			address := serving(t, traffic.ServeConfig{Listen: s.listen, Control: s.control})
			address = strings.Replace(address, "[::]", "127.0.0.1", 1)
			for _, w := range works {
				t.Run(w.name, func(t *testing.T) {
					cfg := w.cfg
					cfg.Address, cfg.Control = address, s.control
					r := run(t, cfg)
					if r.Partial {
						t.Error("the result is partial")
					}
					w.check(t, r)
				})
			}
		})
	}
}

func receivedBytes(t *testing.T, r traffic.Result) {
	t.Helper()
	if r.BytesReceived == 0 || r.DurationSeconds < 0.05 || r.CPU == nil {
		t.Errorf("nothing was measured: %+v", r)
	}
	rate := 8 * float64(r.BytesReceived) / r.DurationSeconds
	if r.BitsPerSecond < 0.99*rate || r.BitsPerSecond > 1.01*rate {
		t.Errorf("%d bytes in %g s are not %g bit/s", r.BytesReceived, r.DurationSeconds, r.BitsPerSecond)
	}
	if r.Work == "tcp" && (r.Congestion == "" || r.MSSBytes == 0) {
		t.Errorf("the kernel said nothing of congestion control and MSS: %+v", r)
	}
}

func lossless(t *testing.T, r traffic.Result) {
	t.Helper()
	receivedBytes(t, r)
	if r.Lost != 0 || r.Duplicated != 0 || r.PacketsSent == 0 || r.PacketsReceived != r.PacketsSent {
		t.Errorf("sent %d, received %d, lost %d, duplicated %d over loopback", r.PacketsSent, r.PacketsReceived, r.Lost, r.Duplicated)
	}
	if want := r.PacketsReceived * uint64(r.MessageBytes); r.BytesReceived != want {
		t.Errorf("%d bytes, want %d", r.BytesReceived, want)
	}
	if most := r.OfferedBitsPerSecond * 1.05; r.BitsPerSecond > most {
		t.Errorf("%g bit/s arrived, offered were %g", r.BitsPerSecond, r.OfferedBitsPerSecond)
	}
}

func searched(t *testing.T, r traffic.Result) {
	t.Helper()
	if len(r.Trials) == 0 || r.BitsPerSecond == 0 || r.LossFraction > r.LossBound {
		t.Errorf("the search found nothing: %+v", r)
	}
	if r.DurationSeconds < 0.29 || r.CPU == nil || r.CPU.Wall < 0.29 || r.CPU.Wall > 3 { // 0.3 s, a trial has 0.1
		t.Errorf("the rate was counted over %v s, processor time over %+v: not over a run of its own", r.DurationSeconds, r.CPU)
	}
}

// TestSearchComesBeforeTheStart checks that clients start the run that gives the result together, after they have
// searched.
func TestSearchComesBeforeTheStart(t *testing.T) {
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
	began := time.Now()
	var opened time.Time
	r, err := traffic.Run(t.Context(), traffic.Config{Work: traffic.UDP, Search: true, Address: address, LossBound: 0.9, Duration: 300 * time.Millisecond,
		Gate: func(context.Context) (time.Time, error) { opened = time.Now(); return opened, nil }})
	if err != nil {
		t.Fatal(err)
	}
	if before, after := opened.Sub(began), time.Since(opened); before < 100*time.Millisecond || after < 290*time.Millisecond || len(r.Trials) == 0 {
		t.Errorf("the gate opened after %v and %v before the end, %d trials", before, after, len(r.Trials))
	}
}

func transacted(t *testing.T, r traffic.Result) {
	t.Helper()
	if r.Transactions == 0 || r.TransactionsPerSecond == 0 || r.Lost+r.Failures != 0 {
		t.Fatalf("transactions failed: %+v", r)
	}
	latencies(t, r)
	if r.P50 <= 0 || r.P99 < r.P50 || r.P999 < r.P99 {
		t.Errorf("percentiles %s %s %s", r.P50, r.P99, r.P999)
	}
}

func passes(t *testing.T, r traffic.Result) {
	t.Helper()
	if r.LinkMTU == 0 || r.PathMTU != r.LinkMTU || r.BlackHole || r.ProbeError != "" {
		t.Errorf("loopback does not carry full-size packets: %+v", r)
	}
}

func TestCongestionControlIsSet(t *testing.T) {
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
	for _, reverse := range []bool{false, true} {
		r := run(t, traffic.Config{Work: traffic.TCP, Address: address, Congestion: "reno", MSS: 1000, Reverse: reverse})
		if r.Congestion != "reno" {
			t.Errorf("reverse %v: congestion control %q, want reno", reverse, r.Congestion)
		}
		if r.MSSBytes > 1000 || r.MSSBytes < 900 {
			t.Errorf("reverse %v: MSS %d, want about 1000", reverse, r.MSSBytes)
		}
	}
	usual := run(t, traffic.Config{Work: traffic.TCP, Address: address}).Congestion
	if r := run(t, traffic.Config{Work: traffic.TCP, Address: address, Reverse: true}); r.Congestion != usual {
		t.Errorf("nothing asked for: %q where the server sends, and %q where the client does", r.Congestion, usual)
	}
	_, err := traffic.Run(context.Background(), traffic.Config{Work: traffic.TCP, Address: address, Congestion: "nosuch"})
	if err == nil || !strings.Contains(err.Error(), "tcp_available_congestion_control") {
		t.Errorf("unknown congestion control: %v", err)
	}
}

func TestMPTCP(t *testing.T) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 262)
	if err != nil {
		t.Skip("no MPTCP: ", err)
	}
	syscall.Close(fd)
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
	for _, w := range []traffic.Work{traffic.TCP, traffic.RR, traffic.CRR} {
		r := run(t, traffic.Config{Work: w, Address: address, MPTCP: true})
		if !r.MPTCP || r.MPTCPFallback || (w != traffic.CRR && r.Subflows < 1) {
			t.Errorf("%s: %+v", w, r)
		}
	}
	// A server that is reachable by TCP alone, here through a userland forward.
	plain := forwardTo(t, address)
	r := run(t, traffic.Config{Work: traffic.TCP, Address: plain, MPTCP: true})
	if !r.MPTCPFallback || len(r.Warnings) == 0 {
		t.Errorf("the fallback to TCP is not told: %+v", r)
	}
}

// All works pass a proxy that does not know the protocol: one port is enough.
func TestThroughProxy(t *testing.T) {
	address := forwardTo(t, serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"}))
	for _, w := range traffic.Works() {
		cfg := traffic.Config{Work: w, Address: address}
		if w == traffic.UDP {
			cfg.BitsPerSecond = 1e6
		}
		r := run(t, cfg)
		if r.ProbeError != "" || r.BlackHole || (w != traffic.Probe && r.BytesReceived == 0) {
			t.Errorf("%s: %+v", w, r)
		}
	}
}

func TestManyTestsAtOnce(t *testing.T) {
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
	start := time.Now().Add(200 * time.Millisecond)
	var wg sync.WaitGroup
	for i := range 16 {
		work := traffic.Works()[i%5]
		wg.Go(func() {
			r, err := traffic.Run(context.Background(), traffic.Config{
				Work: work, Address: address, Duration: 100 * time.Millisecond, BitsPerSecond: 1e6,
				Gate: func(context.Context) (time.Time, error) { return start, nil },
			})
			if err != nil || r.BytesReceived == 0 {
				t.Errorf("%s: %v, %+v", work, err, r)
			}
			if time.Now().Before(start.Add(100 * time.Millisecond)) {
				t.Errorf("%s ended before its time: it did not wait for the start", work)
			}
		})
	}
	wg.Wait()
}

func TestOnce(t *testing.T) {
	ready, done := make(chan string, 1), make(chan error, 1)
	var served traffic.Served
	go func() {
		done <- traffic.Serve(context.Background(), traffic.ServeConfig{
			Listen: "127.0.0.1:0", Once: true,
			Ready: func(at string) { ready <- at }, Done: func(s traffic.Served) { served = s },
		})
	}()
	run(t, traffic.Config{Work: traffic.TCP, Address: <-ready})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if served.Work != traffic.TCP || served.Error != "" || served.Client == "" {
		t.Errorf("served %+v", served)
	}
}

func TestNoChecksum(t *testing.T) {
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
	lossless(t, run(t, traffic.Config{Work: traffic.UDP, Address: address, NoChecksum: true, BitsPerSecond: 5e6}))
	needIPv6(t)
	_, err := traffic.Run(context.Background(), traffic.Config{Work: traffic.UDP, Address: "[::1]:9", NoChecksum: true})
	var bad *traffic.ConfigError
	if !errors.As(err, &bad) || bad.Field != "no-checksum" {
		t.Errorf("UDP over IPv6 without checksum: %v", err)
	}
}

// An interrupted test ends at once, says so, and returns what it has measured.
func TestInterrupted(t *testing.T) {
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
	for _, cfg := range []traffic.Config{
		{Work: traffic.TCP}, {Work: traffic.TCP, Reverse: true}, {Work: traffic.UDP, BitsPerSecond: 1e6},
		{Work: traffic.UDP, BitsPerSecond: 1e6, Reverse: true}, {Work: traffic.UDP, Search: true},
		{Work: traffic.RR}, {Work: traffic.RR, TransactionsPerSecond: 100}, {Work: traffic.UDPRR}, {Work: traffic.CRR},
	} {
		name := string(cfg.Work)
		if cfg.Reverse {
			name += ", reversed"
		}
		if cfg.Search {
			name += ", search"
		}
		if cfg.TransactionsPerSecond > 0 {
			name += ", schedule"
		}
		t.Run(name, func(t *testing.T) {
			cfg.Address, cfg.Duration = address, time.Hour
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(200*time.Millisecond, cancel)
			r, err := traffic.Run(ctx, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if !r.Partial || !slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.HasPrefix(w, "partial:") }) {
				t.Errorf("the result does not say that it is partial: %+v", r)
			}
			if r.BytesReceived == 0 && !cfg.Search {
				t.Errorf("what was measured is gone: %+v", r)
			}
		})
	}
}

// forwardTo puts a userland forward in front of an address.
func forwardTo(t *testing.T, to string) string {
	t.Helper()
	return forwarding(t, netip.MustParseAddrPort(to)).String()
}
