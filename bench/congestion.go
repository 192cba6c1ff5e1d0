package bench

import (
	"maps"
	"slices"

	"cleat/bench/experiment"
	"cleat/lab"

	"golang.org/x/sys/unix"
)

// A congestion control that an experiment names is a wish: what the lab may not
// use becomes reno, which every kernel has and permits, and not the kernel's
// default, which may be BBR. The experiment is changed, so that its cells say
// what was used.
const (
	wishedCongestion = "cubic" // of a group that names none
	surestCongestion = "reno"

	congestionAxis = "congestion" // of experiment.Only
)

// permitted puts the surest one in place of those that may not be used. The
// caller's experiment stays as it is.
func permitted(e experiment.Experiment, may func(congestion string) bool) experiment.Experiment {
	e.Groups = slices.Clone(e.Groups)
	for i, g := range e.Groups {
		if len(g.Congestion) == 0 {
			g.Congestion = []string{wishedCongestion}
		}
		if !slices.ContainsFunc(g.Congestion, func(c string) bool { return !may(c) }) {
			continue
		}
		g.Congestion = slices.Clone(g.Congestion)
		for j, c := range g.Congestion {
			if !may(c) {
				g.Congestion[j] = surestCongestion
			}
		}
		e.Groups[i].Congestion = slices.Compact(g.Congestion)
	}
	if wanted := e.Only[congestionAxis]; len(wanted) > 0 {
		e.Only = maps.Clone(e.Only)
		for _, c := range wanted {
			if !may(c) {
				// Where it is added needlessly, no cell has it.
				e.Only[congestionAxis] = append(slices.Clip(e.Only[congestionAxis]), surestCongestion)
			}
		}
	}
	return e
}

// mayUse tells whether a socket in the lab may use a congestion control. Where
// that can't be found out, it may: the measurement will say.
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
