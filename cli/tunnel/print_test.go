package tunnel

import (
	"context"
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"cleat/cli/term"
	"cleat/tunnel"
	"cleat/tunnel/control"
	"cleat/tunnel/order"
	"cleat/tunnel/spec"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// started is the start time of the tunnels in these tests.
var started = time.Date(2026, 11, 22, 9, 26, 1, 0, time.Local)

// officeStatus returns the status of a tunnel with paths in several states.
func officeStatus() control.Status {
	path := func(name string, state control.State) control.Path {
		return control.Path{Name: name, State: state, BitsPerSec: 40e6, MaySendBitsPerSec: 48.25e6, ShareRatio: 0.3333,
			DeliveredBytes: 1_530_000_000, DeliveredPackets: 1_000_000, LossRatio: 0.0123, MeasuringBytes: 1_010_000, RTTSeconds: 0.0125, DelaySeconds: 0.00042, QueueSeconds: 0.0008}
	}
	return control.Status{
		Info: control.Info{Name: "office", Device: "cleat0", PID: 4711, Started: started, Scheduler: spec.Adaptive},
		At:   started.Add(26*time.Hour + 3*time.Minute), State: control.TunnelUp, Up: true, FormInUse: spec.Native, Cipher: "AES-128-GCM", MaySendBitsPerSec: 96e6,
		Paths: []control.Path{path("dsl", control.Live), path("lte", control.Dead), path("sat", control.Down), path("wifi", control.Absent)},
		Counters: tunnel.Stats{Read: 12_300_000, ReadBytes: 18_100_000_000, Sent: 13_000_000, Resent: 241, Received: 7, ReceivedBytes: 700,
			QueueBytes: 1514, KeptBytes: 262144, Order: order.Stats{Delivered: 6, Held: 1}},
	}
}

func TestStatusText(t *testing.T) {
	long := officeStatus()
	long.Name, long.Device = strings.Repeat("tunnel-", 9)+"x", "fifteen-bytes-x"
	for i := range long.Paths {
		p := &long.Paths[i]
		p.Name = "the-first-of-two-lines-by-" + p.Name
		p.State = control.Live
		p.BitsPerSec, p.MaySendBitsPerSec, p.ShareRatio, p.DeliveredBytes = 1.234e9, 98.7e12, 0.12345, 1_234_567_890_123
		p.LossRatio, p.RTTSeconds, p.DelaySeconds, p.QueueSeconds = 0.99949, 0.1234, 0.98765, 0.000999
	}
	long.Paths[1].State = control.Waiting
	c := &long.Counters
	c.QueueDrops, c.QueueMarks, c.TooBig, c.SendErrors, c.Missing, c.Invalid, c.WriteErrors = 12345, 23456, 34567, 45678, 56789, 67890, 78901
	c.LateResends = 89012
	c.Order = order.Stats{Delivered: 1e9, Held: 2e9, Lost: 3e9, Late: 4e9, Duplicates: 5e9, TooOld: 6e9, Forced: 7e9, Waiting: 8e9}

	waiting := officeStatus()
	waiting.State, waiting.Up, waiting.FormInUse, waiting.Cipher, waiting.At = control.TunnelWaiting, false, spec.Auto, "", started.Add(59*time.Second)
	waiting.Paths = waiting.Paths[:1]
	waiting.Paths[0].State = control.Waiting
	waiting.Counters = tunnel.Stats{}

	compat := officeStatus()
	compat.FormInUse, compat.Cipher, compat.Paths = spec.Compat, "", compat.Paths[:2]

	silent := officeStatus()
	silent.State, silent.Up, silent.NoAnswerSince = control.TunnelDown, false, silent.At.Add(-50*time.Second)
	silent.Paths = silent.Paths[:3]
	for i := range silent.Paths[:2] {
		p := &silent.Paths[i]
		p.State, p.NoAnswerSince, p.InUse = control.Dead, silent.NoAnswerSince.Add(-time.Duration(i)*time.Hour), i == 0
	}
	silent.Paths[0].Tripped = true
	silent.Paths[1].Metered = true
	never := silent
	never.NoAnswerSince, never.Paths = time.Time{}, []control.Path{{Name: "dsl", State: control.Dead, InUse: true}}

	learned := officeStatus()
	learned.Paths = learned.Paths[:3]
	for i := range learned.Paths {
		learned.Paths[i].RemoteLearned = true
	}
	learned.Paths[0].Remote, learned.Paths[0].RemoteSince = netip.MustParseAddrPort("[2001:db8:1234:5678:9abc:def0:1234:5678]:61234"), learned.At.Add(-time.Hour)
	learned.Paths[1] = control.Path{Name: "lte", State: control.Waiting, RemoteLearned: true}

	hostile := officeStatus()
	hostile.Name, hostile.Paths = "a\x1b[2Jb", hostile.Paths[:1]
	hostile.Paths[0].Name = "c\nd"

	before, now := officeStatus(), officeStatus()
	now.At = before.At.Add(2 * time.Second)
	now.Paths[0].DeliveredBytes += 2_500_000
	now.Counters.Read += 2000
	now.Counters.ReadBytes += 3_000_000
	now.Counters.Resent += 5
	now.Counters.Order.Held += 1
	now.Paths = append(now.Paths, now.Paths[0])
	now.Paths[4].Name = "new"

	for _, tt := range []struct {
		name   string
		status control.Status
		before *control.Status
	}{
		{"states", officeStatus(), nil},
		{"long", long, nil},
		{"waiting", waiting, nil},
		{"compat", compat, nil},
		{"silent", silent, nil},
		{"never answered", never, nil},
		{"learned", learned, nil},
		{"hostile", hostile, nil},
		{"watch", now, &before},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := statusText(tt.status, tt.before)
			for line := range strings.Lines(got) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > statusColumns {
					t.Errorf("%d columns: %s", n, line)
				}
			}
			golden := filepath.Join("testdata", "status-"+strings.ReplaceAll(tt.name, " ", "-")+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Errorf("%s: -want +got (-update writes it):\n%s", golden, d)
			}
		})
	}
}

func TestNumbersInFewColumns(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{numberText(0), "0"}, {numberText(7), "7"}, {numberText(7.46), "7.5"}, {numberText(9.96), "10.0"}, {numberText(999.4), "999"}, {numberText(999.5), "1.00K"},
		{numberText(1234), "1.23K"}, {numberText(9994), "9.99K"}, {numberText(9995), "10.0K"}, {numberText(94.1e6), "94.1M"}, {numberText(999.5e6), "1.00G"},
		{numberText(1e15), "1.00P"}, {numberText(1.8e19), "18.0E"},
		{percentText(0), "0%"}, {percentText(0.00001), "<.01%"}, {percentText(0.0012), "0.12%"}, {percentText(0.123), "12.3%"}, {percentText(0.9996), "100%"}, {percentText(1), "100%"},
		{term.Seconds(0), "0"}, {term.Seconds(1e-7), "0"}, {term.Seconds(42e-6), "42µs"}, {term.Seconds(999.6e-6), "1.00ms"}, {term.Seconds(0.0125), "12.5ms"},
		{term.Seconds(0.9996), "1.00s"}, {term.Seconds(12.34), "12.3s"}, {term.Seconds(-0.0021), "-2.10ms"},
		{ageText(0), "0s"}, {ageText(61 * time.Second), "1m1s"}, {ageText(2*time.Hour + 59*time.Second), "2h0m"}, {ageText(49*time.Hour + time.Minute), "2d1h"},
		{cutMiddle("wlan0", 5), "wlan0"}, {cutMiddle("the-first-line", 7), "the…ine"}, {cutMiddle("äöüäöü", 4), "ä…öü"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}

// fakeClient returns one status after the other, and then err.
type fakeClient struct {
	all []control.Status
	err error
}

func (a *fakeClient) Status(context.Context) (control.Status, error) {
	if len(a.all) == 0 {
		return control.Status{}, a.err
	}
	s := a.all[0]
	a.all = a.all[1:]
	return s, nil
}

func TestWatch(t *testing.T) {
	one, two, again := officeStatus(), officeStatus(), officeStatus()
	two.At, two.Counters.Read = one.At.Add(time.Second), one.Counters.Read+500
	again.Started = two.At // a new tunnel of the same name
	again.At, again.Counters.Read = two.At.Add(time.Second), 42
	ended := errors.New("broken")
	for _, tt := range []struct {
		name     string
		terminal bool
		err      error
		want     string
	}{
		{"blocks", false, ended, "broken"},
		{"in place", true, ended, "broken"},
		{"the tunnel ends", false, control.ErrNotRunning, `watch tunnel "office": it has ended`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var w strings.Builder
				began := time.Now()
				err := watchStatus(t.Context(), &fakeClient{all: []control.Status{one, two, again}, err: tt.err}, &w, tt.terminal, time.Second)
				if err == nil || err.Error() != tt.want {
					t.Errorf("ended with %v, want %s", err, tt.want)
				}
				if d := time.Since(began); d != 3*time.Second {
					t.Errorf("took %v, want 3 s for two blocks and an error", d)
				}
				got := w.String()
				if strings.Count(got, "office on cleat0") != 2 || !strings.Contains(got, "read      500 packets/s") || !strings.Contains(got, "read      42 packets,") {
					t.Errorf("got %s", got)
				}
				if tt.terminal != strings.Contains(got, "\x1b") || tt.terminal && strings.Count(got, clearScreen) != 1 || !tt.terminal && !strings.HasSuffix(got, "\n\n") {
					t.Errorf("got %q", got)
				}
			})
		})
	}
	t.Run("interrupted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			stop := errors.New("interrupted")
			time.AfterFunc(2500*time.Millisecond, func() { cancel(stop) })
			var w strings.Builder
			err := watchStatus(ctx, &fakeClient{all: []control.Status{one, two, again, again}}, &w, false, time.Second)
			if !errors.Is(err, stop) || strings.Count(w.String(), "office on cleat0") != 2 {
				t.Errorf("ended with %v after\n%s", err, &w)
			}
		})
	})
}
