package spec

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"cleat/internal/yamlfile"
)

// File is a tunnel file that was read.
type File struct {
	Name     string    // for messages
	Tunnel   *Tunnel   // nil when there is an error among Findings
	Findings []Finding // in the order of the file

	draft Tunnel // what could be understood
	found findings
}

// maxFile is in bytes: 64 paths with everything said take a third of it.
const maxFile = 64 << 10

// Load reads a tunnel file from r. Its name is for messages, and a key file with
// a relative name is looked for beside it; open opens that. An error is r's:
// what is wrong with the file itself is among its Findings.
func Load(r io.Reader, name string, open Opener) (*File, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read tunnel file %s: %w", name, err)
	}
	f := &File{Name: name}
	f.found.file = name
	if len(text) > maxFile {
		f.found.doc, _ = yamlfile.Read([]byte("{}"), &given{})
		f.found.wrong("$", fmt.Sprintf("at most %d KiB", maxFile>>10), "the file is too large")
		f.Findings = f.found.sorted()
		return f, nil
	}
	f.check(text, open)
	return f, nil
}

// given is a tunnel file as it is written.
type given struct {
	Name      string        `yaml:"name"`
	Device    string        `yaml:"device"`
	Address   []string      `yaml:"address"`
	Routes    []string      `yaml:"routes"`
	Sources   []string      `yaml:"sources"`
	Form      string        `yaml:"form"`
	Port      int           `yaml:"port"`
	Scheduler string        `yaml:"scheduler"`
	Duplicate string        `yaml:"duplicate"`
	Reorder   givenReorder  `yaml:"reorder"`
	MTU       int           `yaml:"mtu"`
	Queue     time.Duration `yaml:"queue"`
	Key       *givenKey     `yaml:"key"`
	Compat    givenCompat   `yaml:"compat"`
	Metrics   string        `yaml:"metrics"`
	Paths     []givenPath   `yaml:"paths"`
}

type givenReorder struct {
	TCP  bool          `yaml:"tcp"`
	UDP  bool          `yaml:"udp"`
	Hold time.Duration `yaml:"hold"`
}

type givenKey struct {
	Private string `yaml:"private"`
	Peer    string `yaml:"peer"`
}

type givenCompat struct {
	Key      uint64 `yaml:"key"`
	Sequence bool   `yaml:"sequence"`
}

type givenPath struct {
	Name   string `yaml:"name"`
	Device string `yaml:"device"`
	Local  string `yaml:"local"`
	Remote string `yaml:"remote"`
	Port   int    `yaml:"port"`
	Rate   string `yaml:"rate"`
	Weight int    `yaml:"weight"`
	MTU    int    `yaml:"mtu"`
	State  string `yaml:"state"`
}

// check reads text and finds all there is to say about it.
func (f *File) check(text []byte, open Opener) {
	g := given{
		Form: string(Auto), Scheduler: string(Adaptive), Port: DefaultPort,
		Reorder: givenReorder{TCP: true, UDP: true, Hold: DefaultHold},
		Compat:  givenCompat{Sequence: true},
	}
	doc, problems := yamlfile.Read(text, &g)
	f.found.doc = doc
	f.found.read(problems)
	if !doc.Wrong("$") {
		c := checker{findings: &f.found, given: &g, t: &f.draft}
		c.checkTop()
		c.checkInner()
		c.checkKey(filepath.Dir(f.Name), open)
		c.checkPaths()
		c.checkTogether()
	}
	f.finish()
}

// finish puts the findings in order, and hands out the tunnel if it can be.
func (f *File) finish() {
	f.Findings = f.found.sorted()
	if !f.found.failed() {
		f.Tunnel = &f.draft
	}
}

// listed are words as a person lists them.
func listed(words []string) string { return strings.Join(words, ", ") }
