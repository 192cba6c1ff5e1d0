package report

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"cleat/bench/cell"
	"cleat/bench/summary"
)

// evil is in every text of a hostile result directory.
const evil = "\x1b]0;owned\a\u009b31m\u202e<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\n| a | b |\xff"

// poisoned returns a copy of a value in which evil follows every text, keys of maps included,
// except for the fields in keep.
func poisoned(v reflect.Value, keep map[string]bool) reflect.Value {
	copied := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.String:
		copied.SetString(v.String() + evil)
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return v
		}
		inner := poisoned(v.Elem(), keep)
		if v.Kind() == reflect.Interface {
			copied.Set(inner)
			return copied
		}
		copied.Set(reflect.New(v.Type().Elem()))
		copied.Elem().Set(inner)
	case reflect.Slice:
		for i := range v.Len() {
			copied = reflect.Append(copied, poisoned(v.Index(i), keep))
		}
	case reflect.Array:
		for i := range v.Len() {
			copied.Index(i).Set(poisoned(v.Index(i), keep))
		}
	case reflect.Struct:
		copied.Set(v)
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && !keep[f.Name] {
				copied.Field(i).Set(poisoned(v.Field(i), keep))
			}
		}
	case reflect.Map:
		if v.IsNil() {
			return v
		}
		copied.Set(reflect.MakeMap(v.Type()))
		for _, k := range v.MapKeys() {
			key := k
			if !keep[k.Type().Name()] {
				key = poisoned(k, keep)
			}
			copied.SetMapIndex(key, poisoned(v.MapIndex(k), keep))
		}
	default:
		return v
	}
	return copied
}

// Fields that select what is shown. Poisoned they are unknown words, and much is not shown.
var (
	choices = map[string]bool{"Metric": true, "Network": true, "Runtime": true, "Topology": true, "Transport": true,
		"Direction": true, "Work": true, "Engine": true, "Started": true, "Latency": true}
	fewChoices = map[string]bool{"Metric": true, "Started": true}
	noChoices  = map[string]bool{"Started": true}
)

// hostile returns inputs for each way of poisoning.
func hostile() map[string]Input {
	inputs := map[string]Input{}
	for name, keep := range map[string]map[string]bool{"choices": choices, "metrics": fewChoices, "nothing": noChoices} {
		in := quickInput()
		in.Samples = append(in.Samples, cell.Sample{
			Cell: cell.Cell{Network: "veth", Factors: map[string]string{"loss": "1%"}}, Work: "tcp", Block: 1,
			Bad: cell.Note("late"), Error: "refused", Warnings: []cell.Warning{cell.Note("slow")}, Values: map[cell.Metric]float64{cell.Throughput: 1},
		})
		in.Environment["words"] = []any{"one", map[string]any{"two": "three"}}
		inputs["keeping "+name] = poisoned(reflect.ValueOf(in), keep).Interface().(Input)
		results := summary.New(in.Samples, in.Absent)
		results.Environment, results.Notes = in.Environment, []string{"a note"}
		inputs["results keeping "+name] = FromResults(poisoned(reflect.ValueOf(results), keep).Interface().(summary.Results))
	}
	return inputs
}

// TestHostileResults checks that a terminal acts on nothing in the table and a browser on
// nothing in the page, whatever the texts of the results are.
func TestHostileResults(t *testing.T) {
	for name, in := range hostile() {
		t.Run(name, func(t *testing.T) {
			var table, page bytes.Buffer
			if err := (Terminal{Width: 80}).Table(&table, in); err != nil {
				t.Fatal(err)
			}
			if err := HTML(&page, in); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(page.String(), "owned") {
				t.Error("no text of the results is shown")
			}
			harmless(t, "table", table.String())
			harmless(t, "page", page.String())
			for _, tag := range []string{"<script", "<img", "</script", `"'>`} {
				if i := strings.Index(page.String(), tag); i >= 0 {
					t.Errorf("the page has %q: %q", tag, page.String()[max(0, i-80):min(len(page.String()), i+40)])
				}
			}
		})
	}
}

// TestHostileResultsForgeNoLines checks that no text of the results makes a line of its own in a
// comparison, a recommendation or a Markdown table.
func TestHostileResultsForgeNoLines(t *testing.T) {
	for name, keep := range map[string]map[string]bool{"choices": choices, "metrics": fewChoices, "nothing": noChoices} {
		in := quickInput()
		results := summary.New(in.Samples, in.Absent)
		results.Summaries, results.Environment = in.Summaries, in.Environment
		results = poisoned(reflect.ValueOf(results), keep).Interface().(summary.Results)
		match := summary.Match{Lines: []summary.VersusLine{{Network: "pasta", Median: 1, N: 9}, {Network: "none", Reason: "absent"}}}
		versus := poisoned(reflect.ValueOf(summary.Versus{Subject: "pasta", Matches: []summary.Match{match}}), nil).Interface().(summary.Versus)
		var advice, comparison, markdown, table bytes.Buffer
		for _, err := range []error{
			summary.WriteAdvice(&advice, summary.Recommend(results), true),
			summary.Compare(results, results, summary.CompareOptions{}).Table(&comparison),
			versus.Markdown(&markdown), versus.Table(&table),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		for what, text := range map[string]string{"advice": advice.String(), "comparison": comparison.String(), "markdown": markdown.String(), "versus": table.String()} {
			if i := strings.Index(text, "\n| a | b"); i >= 0 {
				t.Errorf("keeping %s: the %s has a forged line: %q", name, what, text[max(0, i-80):min(len(text), i+20)])
			}
		}
		if strings.Contains(markdown.String(), "<script") || !strings.Contains(markdown.String(), "owned") {
			t.Errorf("keeping %s: %s", name, markdown.String())
		}
	}
}

// harmless checks that a terminal and a browser act on no character of a text.
func harmless(t *testing.T, name, text string) {
	t.Helper()
	if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) }); i >= 0 {
		t.Errorf("%s: %q", name, text[max(0, i-60):min(len(text), i+20)])
	}
}

// TestPoisonIsEverywhere checks that poisoned reaches every text of a Sample, whatever fields are
// added.
func TestPoisonIsEverywhere(t *testing.T) {
	s := cell.Sample{Cell: cell.Cell{Network: "veth", Factors: map[string]string{"loss": "1%"}}, Warnings: []cell.Warning{cell.Note("slow")},
		Values: map[cell.Metric]float64{cell.Throughput: 1}}
	text := fmt.Sprintf("%#v", poisoned(reflect.ValueOf(s), noChoices).Interface())
	texts := 0
	for v, i := reflect.TypeFor[cell.Sample](), 0; i < v.NumField(); i++ {
		if v.Field(i).Type.Kind() == reflect.String {
			texts++
		}
	}
	for v, i := reflect.TypeFor[cell.Cell](), 0; i < v.NumField(); i++ {
		if v.Field(i).Type.Kind() == reflect.String {
			texts++
		}
	}
	const inside = 2 + 2 + 2 + 1 // key and value of Factors, code and text of Bad and of a warning, a metric
	if got := strings.Count(text, "owned"); got != texts+inside {
		t.Errorf("%d poisoned texts, want %d: %s", got, texts+inside, text)
	}
}
