package summary

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"cleat/bench/cell"
)

// Write writes summary.json and summary.csv into dir, each at once: a reader
// sees the old file or the new one, never a part.
func Write(dir string, summaries []cell.Summary) error {
	return errors.Join(
		replace(filepath.Join(dir, JSONFile), func(w io.Writer) error { return WriteJSON(w, summaries) }),
		replace(filepath.Join(dir, CSVFile), func(w io.Writer) error { return WriteCSV(w, summaries) }))
}

// replace writes a file beside file and renames it.
func replace(file string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("write %q: %w", file, err)
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// WriteJSON writes summaries as a JSON array, one element a line.
func WriteJSON(w io.Writer, summaries []cell.Summary) error {
	for i, s := range summaries {
		if s.Factors == nil {
			s.Factors = map[string]string{}
		}
		if s.Warnings == nil {
			s.Warnings = []string{}
		}
		text, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("encode summary of %q: %w", s.Key(), err)
		}
		opening := ",\n"
		if i == 0 {
			opening = "[\n"
		}
		if _, err := fmt.Fprintf(w, "%s%s", opening, text); err != nil {
			return err
		}
	}
	closing := "\n]\n"
	if len(summaries) == 0 {
		closing = "[]\n"
	}
	_, err := io.WriteString(w, closing)
	return err
}

// ReadJSON reads what WriteJSON wrote.
func ReadJSON(r io.Reader) ([]cell.Summary, error) {
	in := json.NewDecoder(r)
	if begin, err := in.Token(); err != nil {
		return nil, err
	} else if begin != json.Delim('[') {
		return nil, fmt.Errorf("it begins with %v, not with an array", begin)
	}
	var summaries []cell.Summary
	for in.More() { // one by one: an array of nothing is refused before all of it is memory
		var s cell.Summary
		if err := in.Decode(&s); err != nil {
			return nil, err
		}
		if s.Network == "" || s.Metric == "" {
			return nil, fmt.Errorf("element %d: no network or no metric", len(summaries)+1)
		}
		renamed(&s.Cell)
		summaries = append(summaries, s)
	}
	_, err := in.Token()
	return summaries, err
}

// column is one column of summary.csv, with how it is written and read.
type column struct {
	name string
	get  func(*cell.Summary) string
	set  func(*cell.Summary, string) error
}

// csvColumns mirror the fields of summary.json in their order; factors and
// warnings are JSON inside their column.
var csvColumns = []column{
	text("network", func(s *cell.Summary) *string { return &s.Network }),
	text("runtime", func(s *cell.Summary) *string { return &s.Runtime }),
	text("topology", func(s *cell.Summary) *string { return &s.Topology }),
	text("transport", func(s *cell.Summary) *string { return &s.Transport }),
	text("direction", func(s *cell.Summary) *string { return &s.Direction }),
	integer("mtu", func(s *cell.Summary) *int { return &s.MTU }),
	integer("pairs", func(s *cell.Summary) *int { return &s.Pairs }),
	integer("streams", func(s *cell.Summary) *int { return &s.Streams }),
	integer("links", func(s *cell.Summary) *int { return &s.Links }),
	integer("message_bytes", func(s *cell.Summary) *int { return &s.MessageBytes }),
	text("congestion", func(s *cell.Summary) *string { return &s.Congestion }),
	text("placement", func(s *cell.Summary) *string { return &s.Placement }),
	text("engine", func(s *cell.Summary) *string { return &s.Engine }),
	encoded("factors", func(s *cell.Summary) *map[string]string { return &s.Factors }),
	text("metric", func(s *cell.Summary) *cell.Metric { return &s.Metric }),
	text("unit", func(s *cell.Summary) *string { return &s.Unit }),
	integer("n", func(s *cell.Summary) *int { return &s.N }),
	integer("bad_samples", func(s *cell.Summary) *int { return &s.BadSamples }),
	number("median", func(s *cell.Summary) *float64 { return &s.Median }),
	number("ci_low", func(s *cell.Summary) *float64 { return &s.CILow }),
	number("ci_high", func(s *cell.Summary) *float64 { return &s.CIHigh }),
	number("ci_level", func(s *cell.Summary) *float64 { return &s.CILevel }),
	number("mean", func(s *cell.Summary) *float64 { return &s.Mean }),
	number("stderr", func(s *cell.Summary) *float64 { return &s.StdErr }),
	number("cores_per_gbit_user", func(s *cell.Summary) *float64 { return &s.CoresPerGbit.User }),
	number("cores_per_gbit_system", func(s *cell.Summary) *float64 { return &s.CoresPerGbit.System }),
	number("cores_per_gbit_softirq", func(s *cell.Summary) *float64 { return &s.CoresPerGbit.SoftIRQ }),
	encoded("warnings", func(s *cell.Summary) *[]string { return &s.Warnings }),
	encoded("available", func(s *cell.Summary) *bool { return &s.Available }),
	text("reason", func(s *cell.Summary) *string { return &s.Reason }),
}

func text[T ~string](name string, at func(*cell.Summary) *T) column {
	return column{name,
		func(s *cell.Summary) string { return string(*at(s)) },
		func(s *cell.Summary, v string) error { *at(s) = T(v); return nil }}
}

func integer(name string, at func(*cell.Summary) *int) column {
	return column{name,
		func(s *cell.Summary) string { return strconv.Itoa(*at(s)) },
		func(s *cell.Summary, v string) (err error) { *at(s), err = strconv.Atoi(v); return err }}
}

func number(name string, at func(*cell.Summary) *float64) column {
	return column{name,
		func(s *cell.Summary) string { return strconv.FormatFloat(*at(s), 'g', -1, 64) },
		func(s *cell.Summary, v string) (err error) { *at(s), err = strconv.ParseFloat(v, 64); return err }}
}

func encoded[T any](name string, at func(*cell.Summary) *T) column {
	return column{name,
		func(s *cell.Summary) string {
			b, _ := json.Marshal(*at(s)) // strings and booleans always encode
			return string(b)
		},
		func(s *cell.Summary, v string) error { return json.Unmarshal([]byte(v), at(s)) }}
}

// WriteCSV writes summaries with a heading; the columns are the fields of
// summary.json.
func WriteCSV(w io.Writer, summaries []cell.Summary) error {
	out := csv.NewWriter(w)
	row := make([]string, len(csvColumns))
	for i, c := range csvColumns {
		row[i] = c.name
	}
	if err := out.Write(row); err != nil {
		return err
	}
	for _, s := range summaries {
		for i, c := range csvColumns {
			row[i] = c.get(&s)
		}
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// ReadCSV reads what WriteCSV wrote; columns may be in any order.
func ReadCSV(r io.Reader) ([]cell.Summary, error) {
	in := csv.NewReader(r)
	heading, err := in.Read()
	if err != nil {
		return nil, fmt.Errorf("read heading: %w", err)
	}
	where := make([]int, len(csvColumns))
	for i, c := range csvColumns {
		if where[i] = slices.Index(heading, c.name); where[i] < 0 {
			return nil, fmt.Errorf("no column %q", c.name)
		}
	}
	var summaries []cell.Summary
	for {
		row, err := in.Read()
		if err == io.EOF {
			return summaries, nil
		}
		if err != nil {
			return nil, err
		}
		var s cell.Summary
		for i, c := range csvColumns {
			if err := c.set(&s, row[where[i]]); err != nil {
				line, _ := in.FieldPos(where[i])
				return nil, fmt.Errorf("line %d, column %q: %w", line, c.name, err)
			}
		}
		renamed(&s.Cell)
		summaries = append(summaries, s)
	}
}
