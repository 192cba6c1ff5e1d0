package summary

import (
	"strings"

	"cleat/bench/cell"
)

// varying returns the factors that tell apart the cells of one network.
func varying(cells []cell.Cell) []cell.Factor {
	return cell.Varying(cell.Factors(cells), cells)
}

// describe lists a cell's levels of some factors.
func describe(fs []cell.Factor, c cell.Cell) string {
	var parts []string
	for _, f := range fs {
		if level := f.Of(c); level != "" {
			parts = append(parts, f.Say(level))
		}
	}
	return strings.Join(parts, ", ")
}
