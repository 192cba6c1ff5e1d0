package traffic

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"cleat/internal/procstat"

	"github.com/HdrHistogram/hdrhistogram-go"
)

func TestEncodeLatency(t *testing.T) {
	h := newLatency()
	for range 99 {
		record(h, int64(10*time.Microsecond))
	}
	record(h, int64(time.Second))
	record(h, int64(2*time.Minute)) // beyond the histogram's range
	record(h, -5)                   // a clock that went backwards
	text, err := EncodeLatency(h)
	if err != nil {
		t.Fatal(err)
	}
	got, err := hdrhistogram.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if got.TotalCount() != 102 {
		t.Errorf("%d values, want 102", got.TotalCount())
	}
	if p50 := time.Duration(got.ValueAtQuantile(50)); p50 < 9900*time.Nanosecond || p50 > 10100*time.Nanosecond {
		t.Errorf("p50 %s, want 10µs", p50)
	}
	if longest := time.Duration(got.Max()); longest < 59*time.Second {
		t.Errorf("longest %s, want about the histogram's end", longest)
	}
}

func TestResultText(t *testing.T) {
	cpu := &CPUTimes{CPU: procstat.CPU{User: 0.5, System: 1, SoftIRQ: 0.25}, Wall: 1}
	long := strings.Repeat("a warning that does not fit the line ", 5)
	tests := []struct {
		name string
		r    Result
		want []string
	}{
		{"tcp", Result{Work: "tcp", BitsPerSecond: 51.5e9, DurationSeconds: 1, Congestion: "cubic", MSSBytes: 1448, Retransmits: 12345, CPU: cpu, CPUAccounting: "tick",
			CoresPerGbit: &CoresPerGbit{User: 0.01, System: 0.02, SoftIRQ: 0.005}, Warnings: []string{long}}, []string{"51.5 Gbit/s", "cubic", "0.035 cores per Gbit/s", "1.75 cores"}},
		{"udp", Result{Work: "udp", BitsPerSecond: 999.6e6, DurationSeconds: 10, PacketsSent: 1 << 40, Lost: 1 << 39, LossFraction: 0.5, PacketsPerSecond: 123456, MessageBytes: 65507, Jitter: time.Millisecond},
			[]string{"1.00 Gbit/s", "(50 %)", "123 k/s"}},
		{"rr", Result{Work: "rr", Transactions: 5, TransactionsPerSecond: 5, P50: 14 * time.Microsecond, P99: 2 * time.Millisecond, P999: 1234 * time.Millisecond, LagP99: 3}, []string{"14µs", "2ms", "1.234s"}},
		{"rr, all late", Result{Work: "rr", Late: 1, DurationSeconds: 1, P50: 2 * time.Second, P99: 2 * time.Second, P999: 2 * time.Second}, []string{"p99.9 2s", "0 /s"}},
		{"rr, nothing", Result{Work: "rr", DurationSeconds: 1, Failures: 3}, []string{"3 failed or lost"}},
		{"black hole", Result{Work: "probe", LinkMTU: 1500, PathMTU: 1400, BlackHole: true, ProbeError: "tcp: " + errStalled.Error()}, []string{"1400 bytes", "black hole"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := tt.r.Text()
			for line := range strings.Lines(text) {
				if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
					t.Errorf("%d columns: %s", n, line)
				}
			}
			for _, w := range tt.want {
				if !strings.Contains(text, w) {
					t.Errorf("%q is not in:\n%s", w, text)
				}
			}
		})
	}
}

// TestFewTransactions checks the warning of a result, and that a run with too few transactions
// has it in its text and its JSON.
func TestFewTransactions(t *testing.T) {
	for n, want := range map[int64]string{
		0: "", 19: "lie above p50, p99, p99.9", 20: "lie above p99, p99.9", 999: "lie above p99, p99.9",
		1000: "lie above p99.9", 9999: "fewer than 10 of 9999 lie above p99.9", 10_000: "", 1e12: "",
	} {
		if got := fewTransactions(n); !strings.HasSuffix(got, want) || (got == "") != (want == "") || want != "" && !strings.HasPrefix(got, FewTransactions) {
			t.Errorf("%d transactions: %q, want %q", n, got, want)
		}
	}
	c := &client{cfg: Config{Work: RR}, far: &peer{gone: make(chan struct{})}, result: Result{Work: "rr"}}
	one := &transactor{done: 500, latency: newLatency(), lag: newLatency()}
	recordMany(one.latency, int64(time.Millisecond), 500)
	if err := c.transacted(t.Context(), []*transactor{one}, time.Second); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(c.result)
	if err != nil {
		t.Fatal(err)
	}
	const want = "fewer than 10 of 500 lie above p99, p99.9"
	if !strings.Contains(c.result.Text(), want) || !strings.Contains(string(text), want) {
		t.Errorf("%q is missing in\n%s\n%s", want, c.result.Text(), text)
	}
}

func TestFormatRate(t *testing.T) {
	tests := []struct {
		in   float64
		want string
	}{
		{0, "0 bit/s"}, {999, "999 bit/s"}, {1000, "1.00 kbit/s"}, {999.4e6, "999 Mbit/s"},
		{999.6e6, "1.00 Gbit/s"}, {12.34e9, "12.3 Gbit/s"}, {123e9, "123 Gbit/s"}, {1e15, "1000 Tbit/s"},
	}
	for _, tt := range tests {
		if got := FormatRate(tt.in); got != tt.want {
			t.Errorf("FormatRate(%g) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

// Other programs read these names.
func TestResultJSONNames(t *testing.T) {
	b, err := json.Marshal(Result{Work: "tcp", BitsPerSecond: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{`"work":"tcp"`, `"bits_per_second":1`, `"bytes_received":0`, `"duration_seconds":0`} {
		if !strings.Contains(string(b), name) {
			t.Errorf("%s is not in %s", name, b)
		}
	}
}
