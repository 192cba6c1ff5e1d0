package summary

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"testing"

	"cleat/bench/cell"
)

// What is read can be summarised, compared, judged, and written and read again.
func FuzzRead(f *testing.F) {
	f.Add([]byte(sampleLine + "\n" + absentLine + "\n" + sampleLine[:40]))
	q := quick(f, 1).results()
	var asJSON, asCSV bytes.Buffer
	if err := errors.Join(WriteJSON(&asJSON, q.Summaries), WriteCSV(&asCSV, q.Summaries)); err != nil {
		f.Fatal(err)
	}
	f.Add(asJSON.Bytes())
	f.Add(asCSV.Bytes())
	for _, s := range q.Samples[:4] {
		line, err := json.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := ReadSamples(bytes.NewReader(text))
		if err != nil {
			if r.Summaries, err = ReadJSON(bytes.NewReader(text)); err != nil {
				if r.Summaries, err = ReadCSV(bytes.NewReader(text)); err != nil {
					return
				}
			}
		}
		Compare(r, r, CompareOptions{})
		if err := WriteAdvice(io.Discard, Recommend(r), false); err != nil {
			t.Fatal(err)
		}
		for _, form := range []struct {
			write func(io.Writer, []cell.Summary) error
			read  func(io.Reader) ([]cell.Summary, error)
		}{{WriteJSON, ReadJSON}, {WriteCSV, ReadCSV}} {
			var out bytes.Buffer
			if err := form.write(&out, r.Summaries); err != nil {
				t.Fatal(err)
			}
			if again, err := form.read(&out); err != nil || len(again) != len(r.Summaries) {
				t.Fatalf("%d summaries became %d: %v", len(r.Summaries), len(again), err)
			}
		}
	})
}
