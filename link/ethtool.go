package link

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/safchain/ethtool"
)

// offloads are ethtool(8)'s short names for groups of kernel features. A member
// that ends in '-' stands for all features with that prefix.
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

// SetOffload turns an offload of the link on or off. name is gro, gso, tso, uso,
// tx and rx (checksums), sg, rxvlan or txvlan as in ethtool(8), or a feature by
// the kernel's name. Unknown names, and offloads that the link can't change, are
// a *ParamError. It is also an error if the kernel keeps the old state: tso needs
// tx and sg. Of a group, features that the link can't change are skipped.
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
		return paramError("offload", "name", name, "one that link "+w.name+" can change")
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
			return fmt.Errorf("set offload %q of link %q: %s did not change: it depends on another offload", name, w.name, f)
		}
	}
	return nil
}

// Offload reports whether an offload of the link is on, as SetOffload names them. A group is on if one of its features
// is that the link can change.
func (l *Link) Offload(name string) (on bool, err error) {
	w := l.current()
	e, all, err := w.features()
	if err != nil {
		return false, err
	}
	defer e.Close()
	for _, f := range featuresOf(name, all) {
		if s := all[f]; s.Available && !s.NeverChanged && s.Active {
			return true, nil
		}
	}
	return false, nil
}

// features returns the link's features and the socket they were read from, which
// the caller closes.
func (w location) features() (*ethtool.Ethtool, map[string]ethtool.FeatureState, error) {
	e, err := openIn(w.ns, "ethtool", ethtool.NewEthtool)
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

// featuresOf returns the features of a group, or the feature of that name.
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
