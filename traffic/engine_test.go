package traffic

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestEngineCommandLines(t *testing.T) {
	tests := []struct {
		name string
		cfg  Config
		want string // "": refused
	}{
		{"thesis TCP", Config{Work: TCP, Engine: EngineIperf3, Duration: 10 * time.Second, Omit: time.Second, MSS: 1460, Congestion: "cubic"},
			"--client h --port 1 --json --time 10 --parallel 1 --length 131072 --omit 1 --set-mss 1460 --congestion cubic"},
		{"thesis UDP", Config{Work: UDP, Engine: EngineIperf3, Duration: 10 * time.Second, MessageBytes: 8192, BitsPerSecond: 10e9},
			"--client h --port 1 --json --time 10 --parallel 1 --length 8192 --udp --bitrate 10000000000"},
		{"iperf3, half a second is one", Config{Work: TCP, Engine: EngineIperf3, Duration: time.Second / 2, Reverse: true},
			"--client h --port 1 --json --time 1 --parallel 1 --length 131072 --reverse"},
		{"iperf3, rate of four streams", Config{Work: UDP, Engine: EngineIperf3, Streams: 4, BitsPerSecond: 1e9, BufferBytes: 4096},
			"--client h --port 1 --json --time 1 --parallel 4 --length 1448 --udp --bitrate 250000000 --window 4096"},
		{"iperf3, message too long", Config{Work: TCP, Engine: EngineIperf3, MessageBytes: 2 << 20}, ""},
		{"iperf TCP", Config{Work: TCP, Engine: EngineIperf, Duration: time.Second / 2, Streams: 2, Congestion: "reno", MSS: 1000},
			"--client h --port 1 --time 0.5 --parallel 2 --len 131072 --reportstyle C --mss 1000 --linux-congestion reno"},
		{"iperf UDP", Config{Work: UDP, Engine: EngineIperf, BitsPerSecond: 1e6},
			"--client h --port 1 --time 1 --parallel 1 --len 1448 --udp --bandwidth 1000000 --format b"},
		{"iperf, reversed", Config{Work: TCP, Engine: EngineIperf, Reverse: true}, ""},
		{"iperf, ramp", Config{Work: TCP, Engine: EngineIperf, Omit: time.Second}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args, err := foreignEngine(tt.cfg.Engine).client(tt.cfg.withDefaults(), "h", "1")
			if (err != nil) != (tt.want == "") {
				t.Fatalf("error %v", err)
			}
			if got := strings.Join(args, " "); err == nil && got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestPacedByDefault(t *testing.T) {
	for _, tt := range []struct {
		cfg   Config
		usual string
		warns bool
	}{
		{Config{Engine: EngineIperf3, Work: TCP, Congestion: "cubic"}, "bbr", true},
		{Config{Engine: EngineIperf3, Work: TCP, Congestion: "cubic"}, "reno", false},
		{Config{Engine: EngineIperf3, Work: TCP, Congestion: "bbr"}, "bbr", false},
		{Config{Engine: EngineIperf3, Work: TCP}, "bbr", false},
		{Config{Engine: EngineIperf3, Work: UDP, Congestion: "cubic"}, "bbr", false},
		{Config{Engine: EngineIperf, Work: TCP, Congestion: "cubic"}, "bbr", false}, // iperf sets it before it connects
	} {
		if w := pacedByDefault(tt.cfg, tt.usual); (w != "") != tt.warns {
			t.Errorf("%+v where %s is usual: %q", tt.cfg, tt.usual, w)
		}
	}
}

func TestEnginesRefuseUnsupportedOptions(t *testing.T) {
	for name, cfg := range map[string]Config{
		"control": {Control: "unix:/x"}, "gso": {GSO: true}, "no-checksum": {NoChecksum: true}, "search": {Search: true}, "mptcp": {MPTCP: true},
	} {
		cfg.Engine = EngineIperf3
		var bad *ConfigError
		if err := foreignLimits(cfg); !errors.As(err, &bad) || bad.Field != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, cfg := range map[string]ServeConfig{"once": {Once: true}, "control": {Control: "unix:/x"}} {
		cfg.Engine = EngineIperf3
		var bad *ConfigError
		if err := Serve(context.Background(), cfg); !errors.As(err, &bad) || bad.Field != name {
			t.Errorf("serve %s: %v", name, err)
		}
	}
}

func TestProgramMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, e := range []Engine{EngineIperf3, EngineIperf} {
		_, err := Run(context.Background(), Config{Work: TCP, Engine: e, Address: "127.0.0.1:1"})
		if !errors.Is(err, ErrNoProgram) || !strings.Contains(err.Error(), "Debian package "+string(e)) {
			t.Errorf("run %s: %v", e, err)
		}
		if err := Serve(context.Background(), ServeConfig{Engine: e}); !errors.Is(err, ErrNoProgram) {
			t.Errorf("serve %s: %v", e, err)
		}
	}
}

const iperf3TCP = `{"start":{"tcp_mss_default":32768},"end":{
"sum_sent":{"seconds":1.0,"bytes":6516899840,"bits_per_second":52135198720,"retransmits":5},
"sum_received":{"seconds":1.01,"bytes":6515064832,"bits_per_second":51604473996},
"sender_tcp_congestion":"cubic"}}`

const iperf3UDP = `{"start":{},"end":{
"sum":{"seconds":1.0,"bytes":1448000,"bits_per_second":11584000,"jitter_ms":0.005,"lost_packets":100,"packets":1000},
"sum_sent":{"seconds":1.0,"bytes":1448000,"bits_per_second":11584000,"packets":1000},
"sum_received":{"seconds":1.0,"bytes":1448000,"bits_per_second":11584000,"lost_packets":100,"packets":1000}}}`

const iperfTCPReport = `19700101000000,127.0.0.1,50120,127.0.0.1,5334,1,0.0-1.0,2802057276,22248570495
19700101000000,127.0.0.1,50118,127.0.0.1,5334,2,0.0-1.0,2439249980,19385320085
19700101000000,127.0.0.1,0,127.0.0.1,5334,-1,0.0-1.0,5241307256,41633890580
`

// The first line is the client's own, the second the server's report.
const iperfUDPReport = `------------------------------------------------------------
Client connecting to 192.0.2.1, UDP port 5001
------------------------------------------------------------
[  1] local 192.0.2.2 port 54427 connected with 192.0.2.1 port 5001
[ ID] Interval       Transfer     Bandwidth
[  1] 0.0000-1.0002 sec  1470000 Bytes  11757648 bits/sec
[  1] Sent 1001 datagrams
[  1] Server Report:
[ ID] Interval       Transfer     Bandwidth        Jitter   Lost/Total Datagrams
[  1] 0.0000-1.0000 sec  1323000 Bytes  10584000 bits/sec   0.250 ms 100/1000 (10%)
`

func TestEngineOutput(t *testing.T) {
	tests := []struct {
		name   string
		engine foreign
		work   Work
		out    string
		want   Result // the fields that are compared; zero Work: refused
	}{
		{"iperf3 TCP", iperf3{}, TCP, iperf3TCP, Result{Work: "tcp", BitsPerSecond: 51604473996, BytesReceived: 6515064832, Retransmits: 5}},
		{"iperf3 UDP", iperf3{}, UDP, iperf3UDP, Result{Work: "udp", BitsPerSecond: 8 * 900 * 1448, BytesReceived: 900 * 1448, PacketsSent: 1000, PacketsReceived: 900, Lost: 100, LossFraction: 0.1, Jitter: 5 * time.Microsecond}},
		{"iperf3 refused", iperf3{}, TCP, `{"error":"unable to connect to server: Connection refused"}`, Result{}},
		{"iperf3 broken off", iperf3{}, TCP, `{"start":{},"end":{}}`, Result{}},
		{"iperf3 without output", iperf3{}, TCP, ``, Result{}},
		{"iperf TCP", iperf2{}, TCP, iperfTCPReport, Result{Work: "tcp", BitsPerSecond: 8 * (2802057276 + 2439249980), BytesReceived: 2802057276 + 2439249980}},
		{"iperf UDP", iperf2{}, UDP, iperfUDPReport, Result{Work: "udp", BitsPerSecond: 10584000, BytesReceived: 1323000, PacketsSent: 1000, PacketsReceived: 900, Lost: 100, LossFraction: 0.1, Jitter: 250 * time.Microsecond}},
		{"iperf UDP without report", iperf2{}, UDP, iperfUDPReport[:strings.Index(iperfUDPReport, "[  1] Server")], Result{}},
		{"iperf refused", iperf2{}, TCP, "", Result{}},
		{"iperf rubbish", iperf2{}, TCP, "1,2,3,4,5,6,x,y,z\n", Result{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := Result{Work: string(tt.work), MessageBytes: 1448}
			err := tt.engine.parse([]byte(tt.out), &r)
			if (err != nil) != (tt.want.Work == "") {
				t.Fatalf("error %v", err)
			}
			if err != nil {
				return
			}
			got := Result{Work: r.Work, BitsPerSecond: r.BitsPerSecond, BytesReceived: r.BytesReceived, Retransmits: r.Retransmits,
				PacketsSent: r.PacketsSent, PacketsReceived: r.PacketsReceived, Lost: r.Lost, LossFraction: r.LossFraction, Jitter: r.Jitter}
			if got.BitsPerSecond != tt.want.BitsPerSecond || got.BytesReceived != tt.want.BytesReceived || got.Retransmits != tt.want.Retransmits ||
				got.Lost != tt.want.Lost || got.PacketsSent != tt.want.PacketsSent || got.PacketsReceived != tt.want.PacketsReceived ||
				got.LossFraction != tt.want.LossFraction || got.Jitter != tt.want.Jitter {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestListensAt(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:145A 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:145B 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 20 4 30 10 -1
`
	for port, want := range map[uint16]bool{5210: true, 5211: false, 5212: false} {
		if got := listensAt(table, port); got != want {
			t.Errorf("port %d: %v, want %v", port, got, want)
		}
	}
}

func TestRunClientBoundsOutput(t *testing.T) {
	_, err := runClient(t.Context(), "/bin/sh", []string{"-c", "head -c 1M /dev/zero >&2; exit 1"}, time.Minute)
	if err == nil || len(err.Error()) > 2*maxErrors {
		t.Errorf("an error of %d bytes", len(fmt.Sprint(err)))
	}
}
