package term

import (
	"encoding/json"
	"io"

	"cleat/internal/columns"
)

// WriteIndentedJSON writes v indented, for people too.
func WriteIndentedJSON(w io.Writer, v any) error {
	e := json.NewEncoder(columns.JSON(w))
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// OrEmpty makes JSON's [] of a list without elements.
func OrEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(columns.JSON(w))
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// WriteJSONLine writes a value as one line of JSON, in which a terminal finds nothing to act
// on.
func WriteJSONLine(out io.Writer, v any) error {
	return json.NewEncoder(columns.JSON(out)).Encode(v)
}
