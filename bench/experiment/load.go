package experiment

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"cleat/internal/yamlfile"
)

//go:embed presets/*.yaml
var presetFiles embed.FS

// presets are the names of the embedded files, the main one first.
var presets = []string{"quick", "claassen2015", "bridge-netfilter", "virtual-interfaces", "udp", "overlays", "rootless", "multipath", "zoo", "wire", "networks", "faults"}

// PresetNames returns the names of the presets, the main one first.
func PresetNames() []string { return slices.Clone(presets) }

// Presets returns the presets, the main one first.
func Presets() []Experiment {
	var all []Experiment
	for _, name := range presets {
		if e, err := Load(name); err == nil { // a test checks that all load
			all = append(all, e)
		}
	}
	return all
}

// Load reads a file if the name has a slash or ends in .yaml or .yml, else a preset. The
// experiment is valid. The error is an *Error, unless the file can't be read.
func Load(nameOrPath string) (Experiment, error) {
	if strings.ContainsRune(nameOrPath, '/') || strings.HasSuffix(nameOrPath, ".yaml") || strings.HasSuffix(nameOrPath, ".yml") {
		text, err := os.ReadFile(nameOrPath)
		if err != nil {
			return Experiment{}, fmt.Errorf("read experiment: %w", err)
		}
		return Parse(nameOrPath, text)
	}
	text, err := presetFiles.ReadFile("presets/" + nameOrPath + ".yaml")
	if err != nil {
		return Experiment{}, unknown("", "preset", nameOrPath, presets)
	}
	return Parse(nameOrPath+".yaml", text)
}

// Parse reads an experiment from YAML text. File is its name in messages.
func Parse(file string, text []byte) (Experiment, error) {
	e := Experiment{Repeat: 10, Warmup: 1}
	doc, problems := yamlfile.Read(text, &e)
	if len(problems) > 0 {
		p := problems[0]
		return Experiment{}, &Error{File: file, Line: p.Line, Column: p.Column, Problem: p.Text, Word: p.Word, Known: p.Known}
	}
	if err := e.Validate(); err != nil {
		return Experiment{}, addLocation(file, doc, err)
	}
	return e, nil
}

// addLocation adds the place in the file to an *Error.
func addLocation(file string, doc *yamlfile.Document, err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	e.File = file
	if e.path != "" {
		at := doc.Place(e.path)
		e.Line, e.Column = at.Line, at.Column
	}
	return e
}
