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

// ErrNoResults says that a path holds no results of an experiment.
var ErrNoResults = errors.New("no results there")

// Results are those of one run. Samples is empty when only a summary was kept.
type Results struct {
	Samples     []cell.Sample
	Absent      []cell.Absent
	Summaries   []cell.Summary
	Environment map[string]any // environment.json as decoded by encoding/json; nil when there is none
	Partial     bool           // the run did not come to its end
	Notes       []string       // what a reader of the numbers must know about the files
}

// New makes Results of samples that are at hand.
func New(samples []cell.Sample, absent []cell.Absent) Results {
	return Results{Samples: samples, Absent: absent, Summaries: Summarize(samples, absent)}
}

// Read reads the results at path: a result directory, or one of its files
// samples.jsonl, summary.json and summary.csv under any name with these
// extensions. Of a directory samples.jsonl is preferred. A last line of
// samples.jsonl that was cut off, as by kill -9, is left out and mentioned in
// Notes, and the run counts as partial. Whoever made the directory is not trusted: its files
// must be regular ones of bounded size. Errors: ErrNoResults when nothing is there; else
// which file and line can't be read, and why.
func Read(path string) (Results, error) {
	file, err := resultFile(path)
	if err != nil {
		return Results{}, err
	}
	limit := int64(maxSummaryBytes)
	if filepath.Ext(file) == ".jsonl" {
		limit = maxSamplesBytes
	}
	f, err := open(file, limit, file == path) // the caller may have typed a link's name
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
	if err := r.readEnvironment(filepath.Join(filepath.Dir(file), EnvironmentFile)); err != nil {
		return Results{}, err
	}
	return r, nil
}

// resultFile finds the best file at path.
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

// ReadSamples reads lines of JSON, each a cell.Sample or a cell.Absent. The longest line has
// 1 MiB, and there are at most 262,144.
func ReadSamples(in io.Reader) (Results, error) {
	var r Results
	lines := bufio.NewReader(in)
	for number := 1; ; number++ {
		line, end := readLine(lines)
		if end == nil && number > maxSamples {
			end = fmt.Errorf("%w: at most %d samples can be read", errTooLarge, maxSamples)
		}
		if end != nil && end != io.EOF {
			return Results{}, fmt.Errorf("line %d: %w", number, end)
		}
		if len(bytes.TrimSpace(line)) > 0 {
			err := r.addLine(line)
			if err != nil && end == io.EOF {
				r.Partial = true
				r.Notes = append(r.Notes, fmt.Sprintf("the last line of the samples (%d) is cut off and was left out", number))
			} else if err != nil {
				return Results{}, fmt.Errorf("line %d: %w", number, err)
			}
		}
		if end == io.EOF {
			r.Summaries = Summarize(r.Samples, r.Absent)
			return r, nil
		}
	}
}

// readLine reads up to a line feed, which it returns too, or the end.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > maxLineBytes {
			return nil, fmt.Errorf("%w: at most %d bytes of a line can be read", errTooLarge, maxLineBytes)
		}
		line = append(line, part...)
		if err != bufio.ErrBufferFull {
			return line, err
		}
	}
}

// addLine adds one line of samples.jsonl.
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
		err := json.Unmarshal(line, &a)
		if err == nil {
			renamed(&a.Cell)
			r.Absent = append(r.Absent, a)
		}
		return err
	}
	var s cell.Sample
	err := json.Unmarshal(line, &s)
	if _, ok := s.Values[""]; ok {
		return errors.New("a value of no metric")
	}
	if err == nil {
		renamed(&s.Cell)
		r.Samples = append(r.Samples, s)
	}
	return err
}

// oldNative is what cell.Native was called in files until there were other
// runtimes.
const oldNative = "netns"

// renamed gives a cell from a file today's words.
func renamed(c *cell.Cell) {
	if c.Runtime == oldNative {
		c.Runtime = cell.Native
	}
}

// readEnvironment adds what environment.json says; a run without one is still a
// run.
func (r *Results) readEnvironment(file string) error {
	f, err := open(file, maxEnvironmentBytes, false)
	if errors.Is(err, fs.ErrNotExist) {
		r.Notes = append(r.Notes, "no "+EnvironmentFile+": the machine is not known")
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
	if complete, ok := r.Environment["complete"].(bool); ok && !complete {
		r.Partial = true
	}
	return nil
}
