package summary

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"cleat/bench/cell"
)

// The files of a result directory that this package reads and writes.
const (
	SamplesFile     = "samples.jsonl"
	EnvironmentFile = "environment.json"
	JSONFile        = "summary.json"
	CSVFile         = "summary.csv"
)

// ErrNoResults is returned for a path that holds no results of an experiment.
var ErrNoResults = errors.New("no results there")

// Results are the results of one run. Samples is empty when only a summary was
// kept.
type Results struct {
	Samples     []cell.Sample
	Absent      []cell.Absent
	Summaries   []cell.Summary
	Environment map[string]any // environment.json as decoded by encoding/json; nil without one
	Partial     bool           // the run was interrupted
	Notes       []string       // what a reader of the numbers must know about the files
}

// New returns the Results of samples.
func New(samples []cell.Sample, absent []cell.Absent) Results {
	return Results{Samples: samples, Absent: absent, Summaries: Summarize(samples, absent)}
}

// Read reads the results at path: a result directory, or one of its files
// samples.jsonl, summary.json and summary.csv under any name with these
// extensions. In a directory samples.jsonl is preferred. A last line of
// samples.jsonl that is cut off, as by kill -9, is dropped and mentioned in
// Notes, and the run counts as partial.
//
// The directory is not trusted: its files must be regular ones of bounded size.
// Read returns ErrNoResults if there is nothing to read; other errors name the
// file and the line.
func Read(path string) (Results, error) {
	file, err := resultFile(path)
	if err != nil {
		return Results{}, err
	}
	limit := int64(maxSummaryBytes)
	if filepath.Ext(file) == ".jsonl" {
		limit = maxSamplesBytes
	}
	f, err := open(file, limit, file == path) // the user may name a symbolic link
	if err != nil {
		return Results{}, err
	}
	defer f.Close()
	var r Results
	switch filepath.Ext(file) {
	case ".jsonl":
		r, err = ReadSamples(f)
	case ".csv":
		r.Summaries, err = ReadCSV(f)
	default:
		r.Summaries, err = ReadJSON(f)
	}
	if err != nil {
		return Results{}, fmt.Errorf("read %q: %w", file, err)
	}
	err = r.readEnvironment(filepath.Join(filepath.Dir(file), EnvironmentFile))
	return r, err
}

// resultFile returns the best file at path.
func resultFile(path string) (string, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("find results %q: %w: no such file or directory", path, ErrNoResults)
	}
	if err != nil {
		return "", fmt.Errorf("find results: %w", err)
	}
	if !info.IsDir() {
		switch filepath.Ext(path) {
		case ".jsonl", ".json", ".csv":
			return path, nil
		}
		return "", fmt.Errorf("find results %q: %w: want a directory or a .jsonl, .json or .csv file", path, ErrNoResults)
	}
	for _, name := range []string{SamplesFile, JSONFile, CSVFile} {
		file := filepath.Join(path, name)
		switch _, err := os.Lstat(file); {
		case err == nil:
			return file, nil
		case !errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("find results: %w", err)
		}
	}
	return "", fmt.Errorf("find results %q: %w: neither %s nor %s nor %s", path, ErrNoResults, SamplesFile, JSONFile, CSVFile)
}

// ReadSamples reads lines of JSON, each a cell.Sample or a cell.Absent. A line
// has at most 1 MiB, and there are at most 262,144. A last line that is cut off is
// dropped, as by Read.
func ReadSamples(in io.Reader) (Results, error) {
	var r Results
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLineBytes)
	lines.Split(scanWholeLines)
	number := 0
	for lines.Scan() {
		if number++; number > maxSamples {
			return Results{}, fmt.Errorf("line %d: %w: at most %d samples can be read", number, errTooLarge, maxSamples)
		}
		line := lines.Bytes()
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		switch err := r.addLine(line); {
		case err != nil && !bytes.HasSuffix(line, []byte("\n")):
			r.Partial = true
			r.Notes = append(r.Notes, fmt.Sprintf("the last line of the samples (%d) is cut off and was dropped", number))
		case err != nil:
			return Results{}, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return Results{}, fmt.Errorf("line %d: %w: at most %d bytes of a line can be read", number+1, errTooLarge, maxLineBytes)
	} else if err != nil {
		return Results{}, fmt.Errorf("line %d: %w", number+1, err)
	}
	r.Summaries = Summarize(r.Samples, r.Absent)
	return r, nil
}

// scanWholeLines is a bufio.SplitFunc for lines with their line feed, so that a
// last line without one can be told.
func scanWholeLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if n := bytes.IndexByte(data, '\n') + 1; n > 0 {
		return n, data[:n], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

func (r *Results) addLine(line []byte) error {
	var probe struct {
		Absent  *string `json:"absent"`
		Network string  `json:"network"`
	}
	if err := json.Unmarshal(line, &probe); err != nil {
		return err
	}
	if probe.Network == "" {
		return errors.New(`no "network"`)
	}
	if probe.Absent != nil {
		var a cell.Absent
		if err := json.Unmarshal(line, &a); err != nil {
			return err
		}
		modernize(&a.Cell)
		r.Absent = append(r.Absent, a)
		return nil
	}
	var s cell.Sample
	if err := json.Unmarshal(line, &s); err != nil {
		return err
	}
	if _, ok := s.Values[""]; ok {
		return errors.New("a value without a metric")
	}
	modernize(&s.Cell)
	r.Samples = append(r.Samples, s)
	return nil
}

// oldNative is the name of cell.Native in files from before there were other
// runtimes.
const oldNative = "netns"

// modernize replaces names that older files use.
func modernize(c *cell.Cell) {
	if c.Runtime == oldNative {
		c.Runtime = cell.Native
	}
}

// readEnvironment reads environment.json, which may be missing.
func (r *Results) readEnvironment(file string) error {
	f, err := open(file, maxEnvironmentBytes, false)
	if errors.Is(err, fs.ErrNotExist) {
		r.Notes = append(r.Notes, "no "+EnvironmentFile+": the machine is unknown")
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err == nil {
		err = json.Unmarshal(text, &r.Environment)
	}
	if err != nil {
		return fmt.Errorf("read %q: %w", file, err)
	}
	if partial, _ := r.Environment["partial"].(bool); partial {
		r.Partial = true
	}
	return nil
}
