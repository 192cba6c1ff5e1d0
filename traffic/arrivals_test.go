package traffic_test

import (
	"io"
	"math"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"cleat/traffic"
)

// pausing returns the address of a proxy to address. It forwards nothing that clients
// send between from and to, counted from the first byte.
func pausing(t *testing.T, address string, from, to time.Duration) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p := &pauser{from: from, to: to}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", address)
			if err != nil {
				t.Error(err)
				c.Close()
				return
			}
			go func() { io.Copy(c, s); c.Close() }()
			go func() { p.copy(s, c); s.Close() }()
		}
	}()
	return l.Addr().String()
}

// pauser pauses all connections of a proxy at once.
type pauser struct {
	from, to time.Duration
	first    sync.Once
	began    time.Time
}

func (p *pauser) copy(dst io.Writer, src io.Reader) {
	buf := make([]byte, 16<<10)
	for {
		n, err := src.Read(buf)
		if err != nil {
			return
		}
		p.first.Do(func() { p.began = time.Now() })
		if past := time.Since(p.began); past >= p.from && past < p.to {
			time.Sleep(p.to - past)
		}
		if _, err := dst.Write(buf[:n]); err != nil {
			return
		}
	}
}

// TestOutage checks that a pause in the middle of a run is found, and so is one at the
// end, together with the data before it.
func TestOutage(t *testing.T) {
	for _, tt := range []struct {
		name     string
		from, to time.Duration
		streams  int
		least    time.Duration
	}{
		{"none", 0, 0, 1, 0},
		{"in the middle", 300 * time.Millisecond, 500 * time.Millisecond, 1, 180 * time.Millisecond},
		{"of all streams", 300 * time.Millisecond, 500 * time.Millisecond, 3, 150 * time.Millisecond},
		{"of a pool of streams", 300 * time.Millisecond, 500 * time.Millisecond, 20, 100 * time.Millisecond},
		{"until the end", 400 * time.Millisecond, time.Hour, 1, 150 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			control := "unix:" + filepath.Join(t.TempDir(), "c")
			address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0", Control: control})
			r := run(t, traffic.Config{Work: traffic.TCP, Address: pausing(t, address, tt.from, tt.to), Control: control,
				Streams: tt.streams, Duration: 700 * time.Millisecond, Early: 50 * time.Millisecond, BufferBytes: 64 << 10})
			if r.Outage < tt.least || r.Outage <= 0 || r.Outage > 2*time.Second {
				t.Errorf("outage %s, want at least %s", r.Outage, tt.least)
			}
			checkEarly(t, r, 0.05)
		})
	}
}

// checkEarly compares the two rates with that of the whole run.
func checkEarly(t *testing.T, r traffic.Result, seconds float64) {
	t.Helper()
	if r.EarlySeconds < seconds-0.001 || r.EarlyBitsPerSecond <= 0 {
		t.Errorf("%v bit/s in the first %v s, want of %v s", r.EarlyBitsPerSecond, r.EarlySeconds, seconds)
	}
	all := r.EarlyBitsPerSecond*r.EarlySeconds + r.SteadyBitsPerSecond*(r.DurationSeconds-r.EarlySeconds)
	if want := 8 * float64(r.BytesReceived); math.Abs(all-want) > 1 {
		t.Errorf("early and steady rates make %.0f bits, %.0f were received", all, want)
	}
}

func TestEarlyDatagrams(t *testing.T) {
	for name, reverse := range map[string]bool{"forth": false, "back": true} {
		t.Run(name, func(t *testing.T) {
			address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
			r := run(t, traffic.Config{Work: traffic.UDP, Address: address, Reverse: reverse, BitsPerSecond: 20e6, Streams: 2,
				Duration: 300 * time.Millisecond, Early: 100 * time.Millisecond})
			if r.Outage <= 0 || r.Outage > 2*time.Second {
				t.Errorf("outage %s", r.Outage)
			}
			checkEarly(t, r, 0.1)
			if r.SteadyBitsPerSecond <= 0 || r.EarlyBitsPerSecond > 2*r.BitsPerSecond {
				t.Errorf("%v bit/s early and %v after it, of %v", r.EarlyBitsPerSecond, r.SteadyBitsPerSecond, r.BitsPerSecond)
			}
		})
	}
}

// TestNoEarlyRateByDefault checks that there is no early rate unless it was requested.
func TestNoEarlyRateByDefault(t *testing.T) {
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
	for _, w := range []traffic.Work{traffic.TCP, traffic.UDP} {
		if r := run(t, traffic.Config{Work: w, Address: address, BitsPerSecond: map[traffic.Work]float64{traffic.UDP: 1e6}[w]}); r.Outage != 0 || r.EarlySeconds != 0 || r.SteadyBitsPerSecond != 0 {
			t.Errorf("%s: %+v", w, r)
		}
	}
}

// TestEarlyOfAShorterRun: the whole run is early.
func TestEarlyOfAShorterRun(t *testing.T) {
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
	r := run(t, traffic.Config{Work: traffic.TCP, Address: address, Early: time.Minute})
	if r.EarlySeconds <= 0 || r.EarlySeconds > r.DurationSeconds || r.SteadyBitsPerSecond != 0 {
		t.Errorf("early %v of %v s, %v bit/s after it", r.EarlySeconds, r.DurationSeconds, r.SteadyBitsPerSecond)
	}
}
