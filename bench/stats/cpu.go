package stats

import "cleat/bench/cell"

// Effort is the cost of one measurement and the data that it moved.
type Effort struct {
	CPU      cell.CPU
	Gigabits float64 // received, 10⁹ bits
}

// CoresPerGbit returns the processor time of all measurements over all the gigabits
// they moved, so that each counts by what it moved. It is zero if nothing was moved.
func CoresPerGbit(efforts []Effort) cell.CoresPerGbit {
	var sum cell.CoresPerGbit
	var gigabits float64
	for _, e := range efforts {
		sum.User += e.CPU.User
		sum.System += e.CPU.System
		sum.SoftIRQ += e.CPU.SoftIRQ
		gigabits += e.Gigabits
	}
	if !(gigabits > 0) {
		return cell.CoresPerGbit{}
	}
	return cell.CoresPerGbit{User: sum.User / gigabits, System: sum.System / gigabits, SoftIRQ: sum.SoftIRQ / gigabits}
}
