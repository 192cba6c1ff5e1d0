package firewall

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Difference is something in which the kernel's tables are not as a State wants them.
type Difference struct {
	Family string // "ip" or "ip6", or "" for what does not belong to one of the tables
	Object string // e.g. "table", "chain forward", "rule 2 of chain forward", "set ports"
	Fault  string // e.g. "is missing", "lacks 1 elements and has 0 others"
}

// String returns the difference as a sentence without a full stop.
func (d Difference) String() string {
	if d.Family == "" {
		return d.Object + " " + d.Fault
	}
	return d.Family + " " + d.Object + " " + d.Fault
}

// compareTables lists how the tables, apart from the elements of their sets and their owners,
// are not as they should be.
func (s *snapshot) compareTables(l layout) (all []Difference, err error) {
	for _, f := range families {
		t := s.tables[f.id]
		if t == nil {
			all = append(all, Difference{f.name, "table", "is missing"})
			continue
		}
		differs := func(object, format string, args ...any) {
			all = append(all, Difference{f.name, object, fmt.Sprintf(format, args...)})
		}
		t.compareSets(f, l, differs)
		if err := t.compareChains(f, l, differs); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(all, func(a, b Difference) int { return cmp.Compare(a.Family, b.Family) })
	return all, nil
}

func (t *tableSnapshot) compareSets(f family, l layout, differs func(object, format string, args ...any)) {
	unknown := maps.Clone(t.sets)
	for _, want := range f.sets(l) {
		got, ok := t.sets[want.name]
		delete(unknown, want.name)
		switch object := "set " + want.name; {
		case !ok:
			differs(object, "is missing")
		case got.flags != want.flags() || got.keyBytes != uint32(bytesOf(want.key)) || !want.verdicts && got.valueBytes != uint32(bytesOf(want.value)):
			differs(object, "is of another type")
		case len(want.fixed) > 0 && !maps.Equal(got.elements, want.fixedElements()):
			differs(object, "has other elements")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(unknown)) {
		differs("set "+name, "is not expected")
	}
}

func (t *tableSnapshot) compareChains(f family, l layout, differs func(object, format string, args ...any)) error {
	unknown := maps.Clone(t.chains)
	for _, want := range f.chains(l) {
		got, ok := t.chains[want.name]
		delete(unknown, want.name)
		object := "chain " + want.name
		if !ok {
			differs(object, "is missing")
			continue
		}
		if got.drops || (got.hook == nil) != (want.base == nil) || got.hook != nil && *got.hook != *want.base {
			differs(object, "has %s, not %s", got.hook.describe(), want.base.describe())
		}
		if len(got.rules) != len(want.rules) {
			differs(object, "has %d rules, not %d", len(got.rules), len(want.rules))
			continue
		}
		for i, r := range want.rules {
			same, err := sameRule(f, got.rules[i], r)
			if err != nil {
				return err
			}
			if !same {
				differs(fmt.Sprintf("rule %d of %s", i+1, object), "is not %q", r.comment)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(unknown)) {
		differs("chain "+name, "is not expected")
	}
	return nil
}

// features returns the features for which one of the tables has sets.
func (s *snapshot) features() (all feature) {
	for _, t := range s.tables {
		for name, f := range map[string]feature{setJudgedVRF: inVRFs, setRemote: ofSeveral, setSealed: withSealed} {
			if _, ok := t.sets[name]; ok {
				all |= f
			}
		}
	}
	return all
}

// contents returns the elements of sets that a State determines.
func (s *snapshot) contents() contents {
	c := contents{}
	for _, f := range families {
		t := s.tables[f.id]
		if t == nil {
			continue
		}
		for _, set := range f.allSets() {
			if got := t.sets[set.name].elements; len(set.fixed) == 0 && len(got) > 0 {
				c[place{f.id, set.name}] = got
			}
		}
	}
	return c
}

// compareContents lists the sets whose elements differ.
func compareContents(got, want contents) (all []Difference) {
	missing, extra := want.minus(got), got.minus(want)
	for _, f := range families {
		for _, s := range f.allSets() {
			at := place{f.id, s.name}
			if few, many := len(missing[at]), len(extra[at]); few+many > 0 {
				all = append(all, Difference{f.name, "set " + s.name, fmt.Sprintf("lacks %d elements and has %d others", few, many)})
			}
		}
	}
	return all
}
