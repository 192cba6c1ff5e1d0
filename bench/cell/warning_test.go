package cell

import (
	"encoding/json"
	"slices"
	"testing"
)

func TestMerge(t *testing.T) {
	for _, c := range []struct {
		name string
		ws   []Warning
		want string
	}{
		{"none", nil, ""},
		{"all samples", []Warning{{Text: "x"}}, "x"},
		{"one sample", []Warning{{Count: 1, Text: "x"}}, "1 sample: x"},
		{"equal counts", []Warning{{Count: 2, Text: "x"}, {Count: 2, Text: "x"}}, "2 samples: x"},
		{"a range of counts, by size", []Warning{{Count: 10, Text: "x"}, {Count: 9, Text: "x"}}, "9–10 samples: x"},
		{"the worst speaks", []Warning{{Severity: 1, Text: "1 ms"}, {Severity: 3, Text: "3 ms"}, {Severity: 2, Text: "2 ms"}}, "3 ms"},
	} {
		if got := Merge(c.ws...); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestWarningJSON(t *testing.T) {
	var got []Warning
	if err := json.Unmarshal([]byte(`["as in older files", {"code": "late", "count": 2, "severity": 0.5, "text": "it was late"}]`), &got); err != nil {
		t.Fatal(err)
	}
	want := []Warning{Note("as in older files"), {Code: "late", Count: 2, Severity: 0.5, Text: "it was late"}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	text, err := json.Marshal(want[1])
	if err != nil || string(text) != `{"code":"late","count":2,"severity":0.5,"text":"it was late"}` {
		t.Errorf("%s, %v", text, err)
	}
}
