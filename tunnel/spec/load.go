package spec

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"cleat/internal/yamlfile"
)

// File is a tunnel file and the result of checking it.
type File struct {
	Name     string    // as in messages
	Tunnel   *Tunnel   // nil if there is an error among Findings
	Findings []Finding // in the order of the file

	draft Tunnel // what could be understood
	found findings
}

// maxFileBytes is three times the size of a file with 64 paths and all their settings.
const maxFileBytes = 64 << 10

// Load reads and checks a tunnel file. Its name is used in messages, and a relative name
// of a key file is relative to it; open opens the key file. Load returns an error if r
// fails: mistakes in the file are among its Findings.
func Load(r io.Reader, name string, open Opener) (*File, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read tunnel file %s: %w", name, err)
	}
	f := &File{Name: name}
	f.found.file = name
	if len(text) > maxFileBytes {
		f.found.doc, _ = yamlfile.Read([]byte("{}"), &rawFile{})
		f.found.reject("$", fmt.Sprintf("at most %d KiB", maxFileBytes>>10), "the file is too large")
		f.Findings = f.found.sorted()
		return f, nil
	}
	f.check(text, open)
	return f, nil
}

type rawFile struct {
	Name      string        `yaml:"name"`
	Device    string        `yaml:"device"`
	Address   []string      `yaml:"address"`
	Routes    []string      `yaml:"routes"`
	Sources   []string      `yaml:"sources"`
	Form      string        `yaml:"form"`
	Port      int           `yaml:"port"`
	Scheduler string        `yaml:"scheduler"`
	Duplicate string        `yaml:"duplicate"`
	Reorder   rawReorder    `yaml:"reorder"`
	MTU       int           `yaml:"mtu"`
	Queue     time.Duration `yaml:"queue"`
	Datapath  string        `yaml:"datapath"`
	Key       *rawKey       `yaml:"key"`
	Compat    rawCompat     `yaml:"compat"`
	Metrics   string        `yaml:"metrics"`
	Paths     []rawPath     `yaml:"paths"`
}

type rawReorder struct {
	TCP  bool          `yaml:"tcp"`
	UDP  bool          `yaml:"udp"`
	Hold time.Duration `yaml:"hold"`
}

type rawKey struct {
	Private string `yaml:"private"`
	Peer    string `yaml:"peer"`
}

type rawCompat struct {
	Key      uint64 `yaml:"key"`
	Sequence bool   `yaml:"sequence"`
}

type rawPath struct {
	Name    string `yaml:"name"`
	Device  string `yaml:"device"`
	Local   string `yaml:"local"`
	Remote  string `yaml:"remote"`
	Port    int    `yaml:"port"`
	Rate    string `yaml:"rate"`
	Weight  int    `yaml:"weight"`
	MTU     int    `yaml:"mtu"`
	State   string `yaml:"state"`
	Metered bool   `yaml:"metered"`
}

func (f *File) check(text []byte, open Opener) {
	g := rawFile{
		Form: string(Auto), Scheduler: string(Adaptive), Port: DefaultPort,
		Reorder: rawReorder{TCP: true, UDP: true, Hold: DefaultHold},
		Compat:  rawCompat{Sequence: true},
	}
	doc, problems := yamlfile.Read(text, &g)
	f.found.doc = doc
	f.found.addProblems(problems)
	if !doc.Wrong("$") {
		c := checker{findings: &f.found, raw: &g, t: &f.draft}
		c.checkGeneral()
		c.checkInner()
		c.checkKey(filepath.Dir(f.Name), open)
		c.checkPaths()
		c.checkTogether()
	}
	f.setResult()
}

// setResult sorts the findings, and sets Tunnel if there is no error.
func (f *File) setResult() {
	f.Findings = f.found.sorted()
	if !slices.ContainsFunc(f.Findings, func(f Finding) bool { return f.Severity == Error }) {
		f.Tunnel = &f.draft
	}
}
