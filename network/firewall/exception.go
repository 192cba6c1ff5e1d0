package firewall

import "slices"

// exception is a rule that accepts packets from or to devices, in a chain of another program.
type exception struct {
	option string // "-i": from the devices, "-o": to them
	name   string
	prefix bool // the name is the start of names
}

// exceptions returns those that the table needs in a chain at a hook.
func (t Table) exceptions(hook string, prefixes []string) (all []exception) {
	if hook == "output" {
		return []exception{{"-o", t.doorway().in, false}}
	}
	for _, p := range prefixes {
		all = append(all, exception{"-i", p, true}, exception{"-o", p, true})
	}
	return all
}

// iptables returns the condition as arguments of iptables.
func (e exception) iptables() []string {
	name := e.name
	if e.prefix {
		name += "+"
	}
	return []string{e.option, name}
}

// nft returns the rule in nft's language.
func (e exception) nft() string {
	key, name := "iifname", e.name
	if e.option == "-o" {
		key = "oifname"
	}
	if e.prefix {
		name += "*"
	}
	return key + ` "` + name + `" accept`
}

// foreignRule is what counts of a rule of another program for the place of exceptions.
type foreignRule struct {
	exception exception // zero: it is not one of the table's
	accepts   bool      // it accepts whatever it matches
}

// placed reports whether all wanted exceptions are among rules, before the one with the index
// end, and behind all rules that do anything but accept. So rules of the host's owner about
// the same devices remain in force.
func placed(rules []foreignRule, end int, wanted []exception) bool {
	missing := slices.Clone(wanted)
	for _, r := range rules[:end] {
		switch {
		case r.exception != exception{}:
			missing = slices.DeleteFunc(missing, func(e exception) bool { return e == r.exception })
		case !r.accepts:
			missing = slices.Clone(wanted) // those before it are too early
		}
	}
	return len(missing) == 0
}
