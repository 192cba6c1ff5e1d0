package link

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"cleat/internal/spell"

	"github.com/safchain/ethtool"
)

// offloads are ethtool(8)'s short names for groups of the kernel's features.
// Names that end in '-' stand for all features that begin with them.
var offloads = map[string][]string{
	"gro":    {"rx-gro"},
	"gso":    {"tx-generic-segmentation"},
	"tso":    {"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation"},
	"uso":    {"tx-udp-segmentation"},
	"tx":     {"tx-checksum-"},
	"rx":     {"rx-checksum"},
	"sg":     {"tx-scatter-gather", "tx-scatter-gather-fraglist"},
	"rxvlan": {"rx-vlan-hw-parse"},
	"txvlan": {"tx-vlan-hw-insert"},
}

// SetOffload switches work of the network stack on or off for the link: gro,
// gso, tso, uso, tx and rx (checksums), sg, rxvlan, txvlan as in ethtool(8), or
// any one feature by the kernel's name. It is an error if the link can't do it
// or the kernel keeps it as it was (tso needs tx and sg); a name that does not
// exist is a *ParamError. Features that the link can't change are left alone as
// long as one of the group can.
func (l *Link) SetOffload(name string, on bool) error {
	w := l.current()
	e, all, err := w.features()
	if err != nil {
		return err
	}
	defer e.Close()
	wanted := map[string]bool{}
	for _, f := range featuresOf(name, all) {
		if s := all[f]; s.Available && !s.NeverChanged {
			wanted[f] = on
		}
	}
	if len(wanted) == 0 {
		return paramError("offload", "name", name, "what link "+w.name+" can change: "+firstFew(spell.Order(name, changeable(all))))
	}
	if err := e.Change(w.name, wanted); err != nil {
		return fmt.Errorf("set offload %q of link %q: %w", name, w.name, err)
	}
	now, err := e.FeaturesWithState(w.name)
	if err != nil {
		return fmt.Errorf("read offloads of link %q: %w", w.name, err)
	}
	for f := range wanted {
		if now[f].Active != on {
			return fmt.Errorf("set offload %q of link %q: the kernel keeps %s as it was: it depends on another offload", name, w.name, f)
		}
	}
	return nil
}

// some is the first of many words.
func firstFew(words []string) string {
	const enough = 8 // one line
	if len(words) > enough {
		words = append(slices.Clone(words[:enough]), "…")
	}
	return strings.Join(words, ", ")
}

// Offloads tells for each short name of SetOffload that the link has, and for
// each of the kernel's features, whether it is on. A group is on when any of its
// features is.
func (l *Link) Offloads() (map[string]bool, error) {
	w := l.current()
	e, all, err := w.features()
	if err != nil {
		return nil, err
	}
	defer e.Close()
	out := map[string]bool{}
	for f, s := range all {
		out[f] = s.Active
	}
	for name := range offloads {
		for _, f := range featuresOf(name, all) {
			out[name] = out[name] || all[f].Active
		}
	}
	return out, nil
}

// tool opens ethtool in the link's namespace; close it.
func (w location) openEthtool() (*ethtool.Ethtool, error) {
	var e *ethtool.Ethtool
	err := w.ns.Do(func() error {
		var err error
		e, err = ethtool.NewEthtool()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open ethtool in %s: %w", w.ns, err)
	}
	return e, nil
}

// features opens ethtool in the link's namespace; close it.
func (w location) features() (*ethtool.Ethtool, map[string]ethtool.FeatureState, error) {
	e, err := w.openEthtool()
	if err != nil {
		return nil, nil, err
	}
	all, err := e.FeaturesWithState(w.name)
	if err != nil {
		e.Close()
		return nil, nil, fmt.Errorf("read offloads of link %q: %w", w.name, err)
	}
	return e, all, nil
}

// groupOf are the features of a group or the one of that name.
func featuresOf(name string, all map[string]ethtool.FeatureState) []string {
	members, ok := offloads[name]
	if !ok {
		members = []string{name}
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(f string) bool {
		return !slices.ContainsFunc(members, func(m string) bool {
			return f == m || strings.HasSuffix(m, "-") && strings.HasPrefix(f, m)
		})
	})
}

// changeable are the names that SetOffload would take.
func changeable(all map[string]ethtool.FeatureState) []string {
	var names []string
	for _, name := range slices.Concat(slices.Sorted(maps.Keys(offloads)), slices.Sorted(maps.Keys(all))) {
		if slices.ContainsFunc(featuresOf(name, all), func(f string) bool { return all[f].Available && !all[f].NeverChanged }) {
			names = append(names, name)
		}
	}
	return names
}
