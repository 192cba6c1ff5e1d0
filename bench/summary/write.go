package summary

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"cleat/bench/cell"
	"cleat/internal/atomicfile"
)

// Write writes summary.json and summary.csv into dir. A reader sees the old
// files or the new ones, never a part of them.
func Write(dir string, summaries []cell.Summary) error {
	return errors.Join(
		atomicfile.Write(filepath.Join(dir, JSONFile), func(w io.Writer) error { return WriteJSON(w, summaries) }),
		atomicfile.Write(filepath.Join(dir, CSVFile), func(w io.Writer) error { return WriteCSV(w, summaries) }))
}

// WriteJSON writes summaries as a JSON array, one element a line.
func WriteJSON(w io.Writer, summaries []cell.Summary) error {
	lines := make([]string, len(summaries))
	for i, s := range summaries {
		text, err := marshal(s)
		if err != nil {
			return err
		}
		lines[i] = string(text)
	}
	text := "[]\n"
	if len(lines) > 0 {
		text = "[\n" + strings.Join(lines, ",\n") + "\n]\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

// marshal encodes a summary without a null.
func marshal(s cell.Summary) ([]byte, error) {
	if s.Factors == nil {
		s.Factors = map[string]string{}
	}
	if s.Warnings == nil {
		s.Warnings = []cell.Warning{}
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode summary of %q: %w", s.Key(), err)
	}
	return text, nil
}

// ReadJSON reads what WriteJSON writes.
func ReadJSON(r io.Reader) ([]cell.Summary, error) {
	in := json.NewDecoder(r)
	if begin, err := in.Token(); err != nil {
		return nil, err
	} else if begin != json.Delim('[') {
		return nil, fmt.Errorf("it begins with %v, not with an array", begin)
	}
	var summaries []cell.Summary
	for in.More() { // one by one: a huge array of nonsense ends at its first element
		var s cell.Summary
		if err := in.Decode(&s); err != nil {
			return nil, err
		}
		if s.Network == "" || s.Metric == "" {
			return nil, fmt.Errorf("element %d: no network or no metric", len(summaries)+1)
		}
		modernize(&s.Cell)
		summaries = append(summaries, s)
	}
	_, err := in.Token()
	return summaries, err
}

// csvColumns are the columns of summary.csv: the fields of summary.json in their
// order, later ones at the end. Texts stand for themselves, other values are JSON; the object
// cores_per_gbit has three columns.
var csvColumns = strings.Fields(`network runtime topology transport direction mtu pairs streams links message_bytes
	congestion placement engine factors metric unit n bad_samples median ci_low ci_high ci_level mean stderr
	cores_per_gbit_user cores_per_gbit_system cores_per_gbit_softirq warnings available reason rate`)

// addedColumns are those that files of earlier versions don't have.
var addedColumns = []string{"rate"}

// coresPrefix begins the columns of the object cores_per_gbit.
const coresPrefix = "cores_per_gbit_"

// fields returns the JSON value of each column.
func fields(s cell.Summary) (map[string]json.RawMessage, error) {
	text, err := marshal(s)
	if err != nil {
		return nil, err
	}
	var all, cores map[string]json.RawMessage
	err = errors.Join(json.Unmarshal(text, &all), json.Unmarshal(all["cores_per_gbit"], &cores))
	for name, value := range cores {
		all[coresPrefix+name] = value
	}
	return all, err
}

// WriteCSV writes summaries with a heading.
func WriteCSV(w io.Writer, summaries []cell.Summary) error {
	rows := [][]string{csvColumns}
	for _, s := range summaries {
		values, err := fields(s)
		if err != nil {
			return err
		}
		row := make([]string, len(csvColumns))
		for i, name := range csvColumns {
			if json.Unmarshal(values[name], &row[i]) != nil {
				row[i] = string(values[name]) // not a text
			}
		}
		rows = append(rows, row)
	}
	return csv.NewWriter(w).WriteAll(rows)
}

// ReadCSV reads what WriteCSV writes. Columns may be in any order.
func ReadCSV(r io.Reader) ([]cell.Summary, error) {
	in := csv.NewReader(r)
	heading, err := in.Read()
	if err != nil {
		return nil, fmt.Errorf("read heading: %w", err)
	}
	for _, name := range csvColumns {
		if !slices.Contains(heading, name) && !slices.Contains(addedColumns, name) {
			return nil, fmt.Errorf("no column %q", name)
		}
	}
	zero, err := fields(cell.Summary{})
	if err != nil {
		return nil, err
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
		all, cores := map[string]json.RawMessage{}, map[string]json.RawMessage{}
		for i, name := range heading {
			if !slices.Contains(csvColumns, name) {
				continue
			}
			value := json.RawMessage(row[i])
			if strings.HasPrefix(string(zero[name]), `"`) {
				value, err = json.Marshal(row[i])
			}
			if err != nil || !json.Valid(value) {
				line, _ := in.FieldPos(i)
				return nil, fmt.Errorf("line %d, column %q: %q is not a value", line, name, row[i])
			}
			if part, ok := strings.CutPrefix(name, coresPrefix); ok {
				cores[part] = value
			} else {
				all[name] = value
			}
		}
		var s cell.Summary
		all["cores_per_gbit"], err = json.Marshal(cores)
		text, err2 := json.Marshal(all)
		if err := errors.Join(err, err2, json.Unmarshal(text, &s)); err != nil {
			line, _ := in.FieldPos(0)
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		modernize(&s.Cell)
		summaries = append(summaries, s)
	}
}
