package experiment

import (
	"encoding/json"
	"fmt"

	"github.com/goccy/go-yaml"
)

// JSON returns the experiment under the keys of its YAML form, for the record of a run.
func (e Experiment) JSON() (json.RawMessage, error) {
	text, err := yaml.MarshalWithOptions(e, yaml.JSON())
	if err != nil {
		return nil, fmt.Errorf("encode the experiment: %w", err)
	}
	if !json.Valid(text) {
		return nil, fmt.Errorf("encode the experiment: not valid JSON: %s", text)
	}
	return json.RawMessage(text), nil
}
