package experiment

import (
	"encoding/json"
	"testing"
)

// TestJSON: every preset can be recorded, and what is recorded can be run again.
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
