package summary

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cleat/bench/cell"

	"github.com/google/go-cmp/cmp"
)

func TestFilesRoundTrip(t *testing.T) {
	want := quick(t, 1).results().Summaries
	dir := t.TempDir()
	for range 2 { // the second time over existing files
		if err := Write(dir, want); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{JSONFile, CSVFile} {
		got, err := Read(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got.Summaries); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("left in the directory: %v, %v", entries, err)
	}
}

func TestWriteLeavesOldFilesWhenItFails(t *testing.T) {
	if err := Write(filepath.Join(t.TempDir(), "nowhere"), nil); err == nil {
		t.Error("wrote into a directory that does not exist")
	}
	var b bytes.Buffer
	if err := WriteJSON(&b, nil); err != nil || b.String() != "[]\n" {
		t.Errorf("nothing: %q, %v", b.String(), err)
	}
}

// TestJSONForm checks that summary.json is an array of objects with exactly these
// fields.
func TestJSONForm(t *testing.T) {
	var b bytes.Buffer
	if err := WriteJSON(&b, quick(t, 1).results().Summaries[:1]); err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(&b)
	var keys []string
	depth := 0
	for wantKey := false; ; {
		token, err := d.Token()
		if err != nil {
			break
		}
		switch token := token.(type) {
		case json.Delim:
			depth += map[json.Delim]int{'[': 1, '{': 1, ']': -1, '}': -1}[token]
			wantKey = depth == 2
		case string:
			if depth == 2 && wantKey {
				keys = append(keys, token)
				wantKey = false
				continue
			}
			wantKey = depth == 2
		default:
			wantKey = depth == 2
		}
	}
	want := strings.Fields(`network runtime topology transport direction mtu pairs streams links message_bytes congestion
		placement engine factors metric unit n bad_samples median ci_low ci_high ci_level mean stderr cores_per_gbit
		warnings available reason rate`)
	if d := cmp.Diff(want, keys); d != "" {
		t.Error(d)
	}
}

const (
	sampleLine = `{"network":"veth","transport":"tcp","work":"tcp","block":1,"values":{"throughput":1e9}}`
	absentLine = `{"network":"ipvlan-l2","transport":"tcp","work":"tcp","absent":"the kernel has no ipvlan","remedy":"load it"}`
)

func TestReadSamples(t *testing.T) {
	tests := []struct {
		name, text      string
		samples, absent int
		note, fault     string
	}{
		{"both kinds", sampleLine + "\n" + absentLine + "\n", 1, 1, "", ""},
		{"no newline at the end", sampleLine + "\n" + sampleLine, 2, 0, "", ""},
		{"cut off", sampleLine + "\n" + sampleLine[:40], 1, 0, "the last line of the samples (2) is cut off and was dropped", ""},
		{"cut off within the first line", sampleLine[:3], 0, 0, "the last line of the samples (1) is cut off", ""},
		{"empty", "", 0, 0, "", ""},
		{"empty lines", "\n" + sampleLine + "\n\n", 1, 0, "", ""},
		{"broken in the middle", sampleLine[:40] + "\n" + sampleLine + "\n", 0, 0, "", "line 1: "},
		{"no sample", `{"hello":1}` + "\n", 0, 0, "", `line 1: no "network"`},
		{"wrong type", `{"network":"veth","block":"one"}` + "\n", 0, 0, "", "line 1: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := ReadSamples(strings.NewReader(tt.text))
			if tt.fault != "" {
				if err == nil || !strings.HasPrefix(err.Error(), tt.fault) {
					t.Errorf("error %v, want %s…", err, tt.fault)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Samples) != tt.samples || len(r.Absent) != tt.absent {
				t.Errorf("%d samples, %d absent", len(r.Samples), len(r.Absent))
			}
			if got := strings.Join(r.Notes, ""); !strings.HasPrefix(got, tt.note) || (got == "") != (tt.note == "") || r.Partial != (tt.note != "") {
				t.Errorf("notes %q, partial %v", r.Notes, r.Partial)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	tests := []struct {
		name, path, want string
		none             bool
	}{
		{"nothing there", filepath.Join(dir, "missing"), "no such file or directory", true},
		{"empty directory", dir, "neither samples.jsonl nor", true},
		{"another kind of file", write("notes.txt", "hello"), "want a directory", true},
		{"no JSON", write("a.json", "hello"), `a.json": invalid character`, false},
		{"other JSON", write("b.json", `[{"a":1}]`), "element 1: no network", false},
		{"other CSV", write("c.csv", "a,b\n1,2\n"), `no column "network"`, false},
		{"broken environment", filepath.Dir(write("d/environment.json", "{")) + "/../e.jsonl", "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Read(tt.path)
			if err == nil || !strings.Contains(err.Error(), tt.want) || errors.Is(err, ErrNoResults) != tt.none {
				t.Errorf("%v", err)
			}
		})
	}
	write("f/samples.jsonl", sampleLine+"\n")
	write("f/environment.json", "{")
	if _, err := Read(filepath.Join(dir, "f")); err == nil || !strings.Contains(err.Error(), "environment.json") {
		t.Errorf("broken environment: %v", err)
	}
}

func TestReadEnvironment(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{SamplesFile: sampleLine + "\n", EnvironmentFile: `{"partial":true,"seed":7}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r, err := Read(dir)
	if err != nil || !r.Partial || r.Environment["seed"] != 7.0 || len(r.Notes) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestReadOldRuntime checks that results from before there were runtimes can be
// read and compared with newer ones.
func TestReadOldRuntime(t *testing.T) {
	old := func(line string) string { return strings.Replace(line, "{", `{"runtime":"netns",`, 1) + "\n" }
	r, err := ReadSamples(strings.NewReader(old(sampleLine) + old(absentLine)))
	if err != nil {
		t.Fatal(err)
	}
	if r.Samples[0].Runtime != cell.Native || r.Absent[0].Runtime != cell.Native || r.Summaries[0].Runtime != cell.Native {
		t.Errorf("of samples: %q, %q, %q", r.Samples[0].Runtime, r.Absent[0].Runtime, r.Summaries[0].Runtime)
	}
	r.Summaries[0].Runtime = oldNative
	var asJSON, asCSV bytes.Buffer
	if err := errors.Join(WriteJSON(&asJSON, r.Summaries), WriteCSV(&asCSV, r.Summaries)); err != nil {
		t.Fatal(err)
	}
	fromJSON, err := ReadJSON(&asJSON)
	if err != nil || fromJSON[0].Runtime != cell.Native {
		t.Errorf("of summary.json: %v, %v", fromJSON, err)
	}
	fromCSV, err := ReadCSV(&asCSV)
	if err != nil || fromCSV[0].Runtime != cell.Native {
		t.Errorf("of summary.csv: %v, %v", fromCSV, err)
	}
}

// TestReadCSVIgnoresColumns checks that a column which this version does not know is
// ignored, whatever it holds.
func TestReadCSVIgnoresColumns(t *testing.T) {
	var b bytes.Buffer
	if err := WriteCSV(&b, Summarize(veth(), nil)); err != nil {
		t.Fatal(err)
	}
	text := ""
	for line := range strings.Lines(b.String()) {
		text += "not JSON," + line
	}
	got, err := ReadCSV(strings.NewReader(strings.Replace(text, "not JSON,", "comment,", 1)))
	if err != nil || len(got) != 1 || got[0].Network != "veth" {
		t.Errorf("%+v, %v", got, err)
	}
}
