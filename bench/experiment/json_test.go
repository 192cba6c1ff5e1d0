package experiment

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestJSON checks that the record of each preset can be run again.
func TestJSON(t *testing.T) {
	for _, name := range PresetNames() {
		t.Run(name, func(t *testing.T) {
			e, err := Load(name)
			if err != nil {
				t.Fatal(err)
			}
			text, err := e.JSON()
			if err != nil {
				t.Fatal(err)
			}
			var keys map[string]any
			if err := json.Unmarshal(text, &keys); err != nil || keys["name"] != name || keys["groups"] == nil {
				t.Fatalf("%v: %s", err, text)
			}
			again, err := Parse("again.yaml", text) // JSON is YAML
			if err != nil {
				t.Fatal(err)
			}
			if len(again.Jobs()) != len(e.Jobs()) {
				t.Errorf("%d jobs read back, want %d", len(again.Jobs()), len(e.Jobs()))
			}
		})
	}
}

// TestDocumentedExperiment parses the example in doc/experiments.md, and compares the
// document's tables with the program.
func TestDocumentedExperiment(t *testing.T) {
	text, err := os.ReadFile("../../doc/experiments.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("no example")
	}
	e, err := Parse("doc/experiments.md", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Jobs()) == 0 {
		t.Error("the example measures nothing")
	}
	for _, word := range slices.Concat(WorkKinds(), FactorNames(), topologies, transports, directions, placements, engines) {
		if !strings.Contains(string(text), "`"+word+"`") {
			t.Errorf("%q is not documented", word)
		}
	}
}
