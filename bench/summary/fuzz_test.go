package summary

import (
	"bytes"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// FuzzSamples reads arbitrary samples and does with them what the commands do.
func FuzzSamples(f *testing.F) {
	f.Add([]byte(oneSample))
	f.Add([]byte(`{"network":"veth","absent":"no such kernel","remedy":"x","work":"tcp"}` + "\n" + oneSample + `{"network":"cut`))
	f.Add([]byte(`{"network":"bridge","runtime":"netns","mtu":-1,"pairs":1000000000,"streams":-5,"work":"rr","block":1,"values":{"latency_p50":1e308,"latency_p99":-1e308,"x":0},"latency":"HISTFAAAABh42pNpmSzMAAYADE4GlkYMAFBLAm8=","cpu":{"wall_s":-1,"user_s":1e308},"lag_ns":-1,"factors":{"loss":"1%","rate":"1e9"}}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := ReadSamples(bytes.NewReader(text))
		if err != nil {
			return
		}
		_ = WriteAdvice(io.Discard, Recommend(r), true)
		_ = Compare(r, r, CompareOptions{}).Table(io.Discard)
		_ = WriteJSON(io.Discard, r.Summaries)
		_ = WriteCSV(io.Discard, r.Summaries)
	})
}

// FuzzSummaries reads summaries in both forms, and writes and reads them again.
func FuzzSummaries(f *testing.F) {
	f.Add([]byte(oneSummary))
	f.Add([]byte(`[{"network":"a,\"b\"\n","metric":"loss","median":1e-300,"factors":{"":"x"},"warnings":["a","\r"],"mtu":-3}]`))
	f.Add([]byte("network,runtime\na,b\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		_, _ = ReadCSV(bytes.NewReader(text))
		got, err := ReadJSON(bytes.NewReader(text))
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := WriteJSON(&out, got); err != nil {
			t.Fatal(err)
		}
		again, err := ReadJSON(&out)
		if d := cmp.Diff(got, again, cmpopts.EquateEmpty()); err != nil || d != "" {
			t.Errorf("read again: %v\n%s", err, d)
		}
	})
}
