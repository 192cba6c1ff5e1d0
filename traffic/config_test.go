package traffic

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

func TestValidate(t *testing.T) {
	tests := []struct {
		name  string
		cfg   Config
		field string // text of the error; "": none
	}{
		{"the least there is", Config{Work: TCP, Address: "192.0.2.1"}, ""},
		{"everything for TCP", Config{Work: TCP, Address: "[2001:db8::1]:99", Streams: 128, Congestion: "cubic", MSS: 1460, MPTCP: true, Reverse: true, Omit: time.Second}, ""},
		{"thesis", Config{Work: UDP, Address: "192.0.2.1:5201", MessageBytes: 8192, BitsPerSecond: 10e9}, ""},
		{"no work", Config{Address: "192.0.2.1"}, "work"},
		{"unknown engine", Config{Work: TCP, Engine: "netperf", Address: "192.0.2.1"}, "engine"},
		{"iperf3 without rr", Config{Work: RR, Engine: EngineIperf3, Address: "192.0.2.1"}, "engine"},
		{"no address", Config{Work: TCP}, ""},
		{"address with junk", Config{Work: TCP, Address: "192.0.2.1:http:5"}, "address"},
		{"port too high", Config{Work: TCP, Address: "192.0.2.1:65536"}, "address"},
		{"negative duration", Config{Work: TCP, Address: "192.0.2.1", Duration: -1}, "duration"},
		{"too many streams", Config{Work: TCP, Address: "192.0.2.1", Streams: MaxStreams + 1}, "streams"},
		{"datagram without room for a header", Config{Work: UDP, Address: "192.0.2.1", MessageBytes: 31}, "message"},
		{"datagram too long", Config{Work: UDP, Address: "192.0.2.1", MessageBytes: MaxDatagramBytes + 1}, "message"},
		{"request without room for the preamble", Config{Work: CRR, Address: "192.0.2.1", MessageBytes: 23}, "message"},
		{"rr of one byte", Config{Work: RR, Address: "192.0.2.1", MessageBytes: 1}, ""},
		{"negative MSS", Config{Work: TCP, Address: "192.0.2.1", MSS: -1}, "mss"},
		{"negative rate", Config{Work: UDP, Address: "192.0.2.1", BitsPerSecond: -1}, "rate"},
		{"loss bound of everything", Config{Work: UDP, Address: "192.0.2.1", LossBound: 1}, "loss-bound"},
		{"MPTCP over UDP", Config{Work: UDP, Address: "192.0.2.1", MPTCP: true}, "mptcp"},
		{"GSO without checksum", Config{Work: UDP, Address: "192.0.2.1", GSO: true, NoChecksum: true}, "gso"},
		{"reversed rr", Config{Work: RR, Address: "192.0.2.1", Reverse: true}, "reverse"},
		{"reversed search", Config{Work: UDP, Address: "192.0.2.1", Reverse: true, Search: true}, "search"},
		{"control without path", Config{Work: TCP, Address: "192.0.2.1", Control: "unix:"}, "control"},
		{"control over TCP", Config{Work: TCP, Address: "192.0.2.1", Control: "192.0.2.1:1"}, "control"},
		{"control path too long", Config{Work: TCP, Address: "192.0.2.1", Control: "unix:/" + strings.Repeat("x", 108)}, "control"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.cfg.Validate()
			if tt.field == "" {
				if err != nil && tt.cfg.Address != "" {
					t.Errorf("error %v, want none", err)
				}
				return
			}
			var bad *ConfigError
			if !errors.As(err, &bad) || bad.Field != tt.field {
				t.Errorf("error %v, want one about %q", err, tt.field)
			}
		})
	}
}

func TestSplitAddress(t *testing.T) {
	tests := []struct{ in, host, port string }{
		{"192.0.2.1", "192.0.2.1", "5210"},
		{"192.0.2.1:80", "192.0.2.1", "80"},
		{"example:80", "example", "80"},
		{"2001:db8::1", "2001:db8::1", "5210"},
		{"[2001:db8::1]", "2001:db8::1", "5210"},
		{"[2001:db8::1]:80", "2001:db8::1", "80"},
		{"fe80::1%eth0", "fe80::1%eth0", "5210"},
		{"192.0.2.1:", "", ""},
		{"192.0.2.1:-1", "", ""},
		{"192.0.2.1:http", "", ""},
		{"[2001:db8::1", "", ""},
		{"a:b:c", "", ""},
		{":0", "", "0"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			host, port, err := splitAddress("address", tt.in)
			if (err != nil) != (tt.port == "") {
				t.Fatalf("error %v", err)
			}
			if err == nil && (host != tt.host || fmt.Sprint(port) != tt.port) {
				t.Errorf("got %q %d, want %q %q", host, port, tt.host, tt.port)
			}
		})
	}
}

func TestSchedule(t *testing.T) {
	s := schedule{start: 1000, interval: 2.5}
	for _, now := range []int64{0, 999, 1000, 1002, 1003, 1e6, 1e12} {
		due := s.due(now)
		if due > 0 && s.at(due-1) > now {
			t.Errorf("at %d, the last of %d due is only due at %d", now, due, s.at(due-1))
		}
		if s.at(due) <= now-1 { // at rounds down
			t.Errorf("at %d, number %d is due since %d and not counted", now, due, s.at(due))
		}
	}
}

// link is a path with a rate: what exceeds it is lost.
type fakeLink struct{ capacity, sender float64 }

func (l fakeLink) offer(rate float64) (sent, received, loss float64) {
	sent = rate
	if rate == 0 || rate > l.sender {
		sent = l.sender
	}
	received = math.Min(sent, l.capacity)
	return sent, received, (sent - received) / sent
}

func TestSearch(t *testing.T) {
	tests := []struct {
		name     string
		link     fakeLink
		trials   int // at most
		accuracy float64
	}{
		{"the sender is the limit", fakeLink{capacity: 10e9, sender: 5e9}, 1, 0.001},
		{"the path is the limit", fakeLink{capacity: 1e9, sender: 30e9}, searchTrials, 0.02},
		{"a little too fast", fakeLink{capacity: 1e9, sender: 1.006e9}, searchTrials, 0.02},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := searcher{bound: DefaultLossBound}
			best, trials := 0.0, 0
			for {
				rate, ok := s.next()
				if !ok {
					break
				}
				trials++
				sent, received, loss := tt.link.offer(rate)
				if s.answer(sent, received, loss) {
					best = max(best, received)
				}
			}
			want := min(tt.link.capacity, tt.link.sender)
			if math.Abs(best/want-1) > tt.accuracy {
				t.Errorf("found %g, want %g", best, want)
			}
			if trials > tt.trials {
				t.Errorf("%d trials, want at most %d", trials, tt.trials)
			}
		})
	}
}

// A path that collapses under overload carries much less than its capacity.
func TestSearchWithCollapse(t *testing.T) {
	s := searcher{bound: 0.005}
	best := 0.0
	for {
		rate, ok := s.next()
		if !ok {
			break
		}
		if rate == 0 || rate > 1e9 {
			sent := rate
			if rate == 0 {
				sent = 8e9
			}
			s.answer(sent, 0.3e9, 1-0.3e9/sent)
			continue
		}
		if s.answer(rate, rate, 0) {
			best = max(best, rate)
		}
	}
	if best < 0.95e9 {
		t.Errorf("found %g, want nearly 1e9", best)
	}
}

// TestConfirm checks that what a search has found is lowered until a longer trial passes.
func TestConfirm(t *testing.T) {
	const found, sender = 100e6, 150e6 // bit/s
	for name, tt := range map[string]struct {
		rate    float64 // of the best trial; 0: as fast as possible
		carries float64
		want    float64
		trials  int
	}{
		"the rate is right":             {found, found, found, 1},
		"it is a bit too high":          {found, 95e6, found * stepDown * stepDown, 3},
		"nothing passes":                {found, 0, found * math.Pow(stepDown, confirmTrials), confirmTrials},
		"the sender is the limit":       {0, sender, 0, 1},
		"the sender is a bit too quick": {0, 98e6, found * stepDown, 2},
	} {
		c, n := confirmer{rate: tt.rate, below: found}, 0
		for rate, ok := c.next(); ok; rate, ok = c.next() {
			n++
			if rate == 0 {
				rate = sender
			}
			c.answer(rate <= tt.carries)
		}
		if n != tt.trials || math.Abs(c.rate-tt.want) > 1 {
			t.Errorf("%s: %.0f after %d trials, want %.0f after %d", name, c.rate, n, tt.want, tt.trials)
		}
	}
	if _, ok := (&confirmer{}).next(); ok {
		t.Error("nothing that was found is confirmed")
	}
}

func TestSearchFindsNothing(t *testing.T) {
	s := searcher{bound: 0.005}
	for range 100 {
		rate, ok := s.next()
		if !ok {
			if s.asked > searchTrials {
				t.Errorf("%d trials, want at most %d", s.asked, searchTrials)
			}
			return
		}
		s.answer(max(rate, 1e9), 0, 1)
	}
	t.Error("the search does not end")
}
