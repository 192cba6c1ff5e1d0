package term

import (
	"encoding/json"
	"io"

	"cleat/internal/columns"
)

// WriteJSON writes v as JSON with indentation.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(columns.JSON(w))
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// WriteJSONLine writes v as one line of JSON.
func WriteJSONLine(w io.Writer, v any) error {
	return json.NewEncoder(columns.JSON(w)).Encode(v)
}

// OrEmpty returns list, or an empty list if it is nil, so that JSON has [] instead of null.
func OrEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
