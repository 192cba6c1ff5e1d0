package traffic

import (
	"encoding/json"
	"testing"
)

// FuzzForeignEngine parses output of iperf3 and iperf, and of anything else. Every result
// can be written as JSON and as text.
func FuzzForeignEngine(f *testing.F) {
	f.Add([]byte(`{"start":{"tcp_mss_default":1448},"end":{"sum_sent":{"bits_per_second":1e9},"sum_received":{"seconds":1,"bytes":1,"bits_per_second":1e9},"sum":{"packets":3,"lost_packets":-1,"jitter_ms":1e308}}}`))
	f.Add([]byte(`{"error":"unable to connect"}`))
	f.Add([]byte("20260102030405,192.0.2.1,1,192.0.2.2,5001,3,0.0-1.0,1000,8000\n20260102030405,192.0.2.1,1,192.0.2.2,5001,3,0.0-nan,1000,8000\n"))
	f.Add([]byte("[  3] 0.0-1.0 sec  1000 Bytes  8000 bits/sec   0.010 ms    0/   10 (0%)\n[  3] 0.0-0 sec  1 Bytes  8 bits/sec   9999 ms    -3/   10 (0%)\n"))
	f.Fuzz(func(t *testing.T, out []byte) {
		for _, work := range []Work{TCP, UDP} {
			for _, e := range []foreign{iperf3{}, iperf2{}} {
				r := Result{Work: string(work), MessageBytes: 1000}
				if err := readOutput(e, out, &r); err != nil {
					continue
				}
				if _, err := json.Marshal(r); err != nil {
					t.Errorf("%T, %s: %v", e, work, err)
				}
				_ = r.Text()
			}
		}
	})
}
