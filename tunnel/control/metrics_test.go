package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cleat/internal/localsock"
	"cleat/tunnel"
	"cleat/tunnel/spec"
)

// series is a parsed metric.
type series struct {
	kind, help string
	samples    map[string]float64 // by labels, as written
}

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	sampleLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+)$`)
	label      = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)`)
)

// parseMetrics parses the text format 0.0.4 more strictly than Prometheus: each metric
// has HELP, TYPE and all its samples, in this order; none occurs twice; counters end in
// _total and nothing else does; no label occurs twice.
func parseMetrics(text string) (map[string]*series, error) {
	all := map[string]*series{}
	if !strings.HasSuffix(text, "\n") {
		return nil, errors.New("the last line does not end")
	}
	var now *series
	current := ""
	in := bufio.NewScanner(strings.NewReader(text))
	for in.Scan() {
		line := in.Text()
		words := strings.SplitN(line, " ", 4)
		switch {
		case strings.HasPrefix(line, "# HELP "):
			if current = words[2]; len(words) < 4 || !metricName.MatchString(current) || all[current] != nil {
				return nil, fmt.Errorf("wrong or repeated: %s", line)
			}
			now = &series{help: words[3], samples: map[string]float64{}}
			all[current] = now
		case strings.HasPrefix(line, "# TYPE "):
			if now == nil || words[2] != current || now.kind != "" || len(now.samples) > 0 || words[3] != gauge && words[3] != counter {
				return nil, fmt.Errorf("out of place: %s", line)
			}
			now.kind = words[3]
			if (now.kind == counter) != strings.HasSuffix(current, "_total") {
				return nil, fmt.Errorf("the name does not match the type: %s", line)
			}
		default:
			m := sampleLine.FindStringSubmatch(line)
			if m == nil || now == nil || m[1] != current || now.kind == "" {
				return nil, fmt.Errorf("no sample, or out of place: %s", line)
			}
			if err := checkLabels(m[2]); err != nil {
				return nil, fmt.Errorf("%w: %s", err, line)
			}
			v, err := strconv.ParseFloat(m[3], 64)
			if _, twice := now.samples[m[2]]; err != nil || twice {
				return nil, fmt.Errorf("no number, or a repeated sample: %s", line)
			}
			now.samples[m[2]] = v
		}
	}
	return all, in.Err()
}

func checkLabels(text string) error {
	var names []string
	rest := text
	for rest != "" {
		m := label.FindStringSubmatchIndex(rest)
		if m == nil || m[0] != 0 {
			return errors.New("invalid labels")
		}
		names = append(names, rest[m[2]:m[3]])
		rest = rest[m[1]:]
	}
	if strings.HasSuffix(text, ",") || len(names) == 0 || names[0] != "tunnel" {
		return errors.New("labels end or begin wrongly")
	}
	slices.Sort(names)
	if len(slices.Compact(slices.Clone(names))) != len(names) {
		return errors.New("repeated label")
	}
	return nil
}

// TestParseIsStrict checks that the parser rejects what it is meant to reject.
func TestParseIsStrict(t *testing.T) {
	const good = "# HELP a_total Help.\n# TYPE a_total counter\na_total{tunnel=\"x\"} 1\n"
	if _, err := parseMetrics(good); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, old, new string }{
		{"no end of the last line", "1\n", "1"},
		{"no HELP", "# HELP a_total Help.\n", ""},
		{"no TYPE", "# TYPE a_total counter\n", ""},
		{"TYPE of another metric", "TYPE a_total", "TYPE b_total"},
		{"an unknown type", "counter", "number"},
		{"name of a gauge", "a_total", "a"},
		{"a quote in a value", `"x"`, `"x"y"`},
		{"a backslash in a value", `"x"`, `"x\y"`},
		{"no number", " 1\n", " one\n"},
		{"twice", "1\n", "1\na_total{tunnel=\"x\"} 2\n"},
		{"repeated metric", "1\n", "1\n" + good},
		{"repeated label", `"x"`, `"x",path="1",path="2"`},
		{"no tunnel", `tunnel="x"`, `path="x"`},
		{"extra comma", `"x"`, `"x",`},
		{"two spaces", "} 1", "}  1"},
	} {
		if _, err := parseMetrics(strings.ReplaceAll(good, tt.old, tt.new)); err == nil {
			t.Errorf("%s: no error", tt.name)
		}
	}
}

func TestMetricsText(t *testing.T) {
	text := metricsText(statusOf(newFake("office"), began.Add(time.Hour)))
	checkGolden(t, "metrics.txt", []byte(text))
	all, err := parseMetrics(text)
	if err != nil {
		t.Fatal(err)
	}
	const whole, dsl, lte = `tunnel="office"`, `tunnel="office",path="dsl"`, `tunnel="office",path="lte"`
	for _, tt := range []struct {
		name, labels string
		want         float64
	}{
		{"info", `tunnel="office",device="cleat0",form="native",cipher="AES-128-GCM",scheduler="adaptive",version="v1.2.3"`, 1},
		{"up", whole, 1},
		{"start_time_seconds", whole, 1795339561.5},
		{"may_send_bytes_per_second", whole, 6e6},
		{"read_packets_total", whole, 1},
		{"missing_packets_total", whole, 15},
		{"order_most_waiting_packets", whole, 27},
		{"path_live", dsl, 1},
		{"path_live", lte, 0},
		{"path_enabled", lte, 1},
		{"path_open", lte, 0},
		{"path_delivered_bytes_total", dsl, 1.5e6},
		{"path_delivered_bytes_per_second", dsl, 5e6},
		{"path_rtt_seconds", dsl, 0.0125},
		{"path_loss_ratio", dsl, 0.005},
		{"path_share_ratio", dsl, 0.25},
		{"path_metered", dsl, 1},
		{"path_metered", lte, 0},
		{"path_measuring_bytes_total", dsl, 987654},
		{"path_padding_limit_bytes", dsl, 1e6},
	} {
		m := all[prefix+tt.name]
		if m == nil {
			t.Errorf("no metric %s", tt.name)
			continue
		}
		if v, ok := m.samples[tt.labels]; !ok || v != tt.want {
			t.Errorf("%s{%s} is %v, %t; want %v", tt.name, tt.labels, v, ok, tt.want)
		}
	}
	for name, m := range all {
		if !strings.HasSuffix(m.help, ".") || strings.Contains(name, "bits") || strings.Contains(name, "_ms") {
			t.Errorf("%s: help %q", name, m.help)
		}
	}
}

// TestEveryCounterIsAMetric checks that each counter of the data path has a metric: all
// values of a fake differ.
func TestEveryCounterIsAMetric(t *testing.T) {
	all, err := parseMetrics(metricsText(statusOf(newFake("office"), began)))
	if err != nil {
		t.Fatal(err)
	}
	for want := 1.0; want <= 27; want++ {
		found := 0
		for _, m := range all {
			if v, ok := m.samples[`tunnel="office"`]; ok && v == want && m.help != "Whether the other end answers." {
				found++
			}
		}
		if found != 1 {
			t.Errorf("the value %v occurs %d times", want, found)
		}
	}
}

// TestMetricsQuote checks names of files and devices with special characters.
func TestMetricsQuote(t *testing.T) {
	f := newFake("office")
	f.paths = []tunnel.PathStatus{{PathConfig: tunnel.PathConfig{Name: "a\"b\\c\nd"}}}
	all, err := parseMetrics(metricsText(statusOf(f, began)))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := all[prefix+"path_live"].samples[`tunnel="office",path="a\"b\\c\nd"`]; !ok {
		t.Errorf("got %v", all[prefix+"path_live"].samples)
	}
}

func TestServeMetrics(t *testing.T) {
	at := filepath.Join(t.TempDir(), "metrics")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	for _, m := range []spec.Metrics{{Network: "unix", Address: at}, {Network: "tcp", Address: free.Addr().String()}} {
		t.Run(m.Network, func(t *testing.T) {
			if m.Network == "unix" { // as a killed tunnel leaves it
				l, err := localsock.ListenFile(at)
				if err != nil {
					t.Fatal(err)
				}
				l.SetUnlinkOnClose(false)
				l.Close()
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			l, err := ListenMetrics(m)
			if err != nil {
				t.Fatal(err)
			}
			go func() { ended <- ServeMetrics(ctx, l, newFake("office")) }()
			defer func() { cancel() }()
			client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, m.Network, m.Address)
			}}}
			text, kind, status := getMetrics(t, &client, ended, "/metrics")
			if _, err := parseMetrics(text); err != nil || status != 200 || kind != metricsType {
				t.Errorf("%d, %s: %v\n%s", status, kind, err, text)
			}
			for _, path := range []string{"/v1/status", "/v1/stop", "/"} {
				if text, _, status := getMetrics(t, &client, ended, path); status != 404 {
					t.Errorf("%s: %d %s", path, status, text)
				}
			}
			if r, err := client.Post("http://x/metrics", "", nil); err != nil || r.StatusCode != 405 {
				t.Errorf("POST: %v, %v", r, err)
			} else {
				r.Body.Close()
			}
			if m.Network == "unix" {
				if info, err := os.Stat(at); err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("socket: %v, %v; want mode 0600", info.Mode(), err)
				}
			}
			if _, err := ListenMetrics(m); err == nil || !strings.Contains(err.Error(), "listen for metrics at "+m.Address) {
				t.Errorf("listen again: %v", err)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("ended with %v", err)
			}
			if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the socket still exists: %v", err)
			}
		})
	}
}

// getMetrics retries until the server is running.
func getMetrics(t *testing.T, c *http.Client, ended <-chan error, path string) (text, kind string, status int) {
	t.Helper()
	for {
		r, err := c.Get("http://x" + path)
		if err != nil {
			select {
			case err := <-ended:
				t.Fatalf("ServeMetrics: %v", err)
			case <-time.After(5 * time.Millisecond):
			}
			continue
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body), r.Header.Get("Content-Type"), r.StatusCode
	}
}

func TestListenMetricsNowhere(t *testing.T) {
	if l, err := ListenMetrics(spec.Metrics{}); l != nil || err != nil {
		t.Errorf("%v, %v", l, err)
	}
	at := filepath.Join(t.TempDir(), "mine")
	if err := os.WriteFile(at, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenMetrics(spec.Metrics{Network: "unix", Address: at}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("listen over a file: %v, want ErrExist", err)
	}
	if text, err := os.ReadFile(at); err != nil || string(text) != "mine" {
		t.Errorf("the file has %q, %v", text, err)
	}
	if _, err := ListenMetrics(spec.Metrics{Network: "udp", Address: "127.0.0.1:1"}); err == nil {
		t.Error("listened on UDP")
	}
}
