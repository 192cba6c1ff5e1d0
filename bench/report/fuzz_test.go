package report

import (
	"bytes"
	"strings"
	"testing"

	"cleat/bench/summary"
)

// FuzzReport makes the page and the table of arbitrary samples, and checks that a terminal and
// a browser act on none of their texts.
func FuzzReport(f *testing.F) {
	f.Add([]byte(`{"network":"veth","work":"tcp","block":1,"values":{"throughput":1e9}}` + "\n" + `{"network":"<script>","absent":"\u001b[2J","work":"tcp"}` + "\n"))
	f.Add([]byte(`{"network":"bridge","mtu":1500,"pairs":1000000000,"work":"rr","block":1,"values":{"latency_p50":1e308,"latency_p99":-1,"x":0},"cpu":{"wall_s":-1},"factors":{"<script>":"\n"}}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := summary.ReadSamples(bytes.NewReader(text))
		if err != nil {
			return
		}
		in := FromResults(r)
		var table, page bytes.Buffer
		if err := (Terminal{Width: 80}).Table(&table, in); err != nil {
			t.Fatal(err)
		}
		if err := HTML(&page, in); err != nil {
			t.Fatal(err)
		}
		harmless(t, "table", table.String())
		harmless(t, "page", page.String())
		if strings.Contains(page.String(), "<script") {
			t.Error("the page has a script")
		}
	})
}
