package bench

import (
	"maps"
	"slices"

	"cleat/bench/experiment"
	"cleat/lab"

	"golang.org/x/sys/unix"
)

// The congestion control of an experiment is a preference. What the lab may not use
// is replaced by reno, which every kernel has and permits; the kernel's default may
// be BBR. The experiment is changed, so that its cells say what was used.
const (
	preferredCongestion = "cubic" // of a group that names none
	fallbackCongestion  = "reno"

	congestionAxis = "congestion" // of experiment.Only
)

// permitted returns the experiment with fallbackCongestion in place of what may not
// be used.
func permitted(e experiment.Experiment, may func(congestion string) bool) experiment.Experiment {
	e.Groups = slices.Clone(e.Groups)
	for i, g := range e.Groups {
		if len(g.Congestion) == 0 {
			g.Congestion = []string{preferredCongestion}
		}
		if !slices.ContainsFunc(g.Congestion, func(c string) bool { return !may(c) }) {
			continue
		}
		g.Congestion = slices.Clone(g.Congestion)
		for j, c := range g.Congestion {
			if !may(c) {
				g.Congestion[j] = fallbackCongestion
			}
		}
		e.Groups[i].Congestion = slices.Compact(g.Congestion)
	}
	if wanted := e.Only[congestionAxis]; len(wanted) > 0 {
		e.Only = maps.Clone(e.Only)
		for _, c := range wanted {
			if !may(c) {
				// Harmless where no cell has it.
				e.Only[congestionAxis] = append(slices.Clip(e.Only[congestionAxis]), fallbackCongestion)
			}
		}
	}
	return e
}

// mayUse reports whether a socket in the lab may use a congestion control. If that
// can't be found out, it reports true: the measurement fails if not.
func mayUse(congestion string) bool {
	n, err := lab.NewNode("congestion")
	if err != nil {
		return true
	}
	defer n.Close()
	err = n.NS.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil
		}
		defer unix.Close(fd)
		return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion)
	})
	return err == nil
}
