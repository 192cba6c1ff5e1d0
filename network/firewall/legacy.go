package firewall

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"cleat/internal/program"
)

// The tables of iptables-legacy are not among those of nftables. Their rules are examined and
// changed by the programs iptables-legacy and ip6tables-legacy, where these exist.

// lockSeconds is how long the programs wait for others that change rules.
const lockSeconds = "5"

// legacyTables are the filter tables of iptables-legacy.
var legacyTables = []struct{ family, names, program string }{
	{"ip", "/proc/thread-self/net/ip_tables_names", "iptables-legacy"},
	{"ip6", "/proc/thread-self/net/ip6_tables_names", "ip6tables-legacy"},
}

// legacyChain is a chain of a filter table of iptables-legacy.
type legacyChain struct {
	family, program, name string
	drops                 bool // its policy
	lines                 []string
}

// legacyChains calls f for the chains of the thread's namespace that may drop packets of the table.
// unknown, if not nil, is called for a table whose program the machine lacks.
func legacyChains(f func(legacyChain) error, unknown func(family, program string)) error {
	for _, l := range legacyTables {
		names, err := os.ReadFile(l.names)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if !slices.Contains(strings.Fields(string(names)), "filter") {
			continue
		}
		for _, chain := range []string{"FORWARD", "OUTPUT"} {
			c, err := readLegacy(l.family, l.program, chain)
			if errors.Is(err, exec.ErrNotFound) {
				if unknown != nil {
					unknown(l.family, l.program)
				}
				break
			}
			if err == nil {
				err = f(c)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func readLegacy(family, name, chain string) (legacyChain, error) {
	out, err := program.Command(name, "-w", lockSeconds, "-S", chain).Output()
	if err != nil {
		return legacyChain{}, fmt.Errorf("%s -S %s: %w", name, chain, err)
	}
	c := legacyChain{family: family, program: name, name: chain}
	for line := range strings.Lines(string(out)) {
		switch line = strings.TrimSpace(line); {
		case line == "-P "+chain+" DROP":
			c.drops = true
		case strings.HasPrefix(line, "-A "):
			c.lines = append(c.lines, strings.TrimPrefix(line, "-A "+chain+" "))
		}
	}
	return c, nil
}

// end returns the place of exceptions: before a last rule that drops everything.
func (c legacyChain) end() int {
	n := len(c.lines)
	if n > 0 && (c.lines[n-1] == "-j DROP" || strings.HasPrefix(c.lines[n-1], "-j REJECT")) {
		return n - 1
	}
	return n
}

// lacks returns the exceptions that the chain needs; none if they are in place.
func (c legacyChain) lacks(t Table, x Exempt) []exception {
	wanted := t.exceptions(strings.ToLower(c.name), c.family, x)
	if !c.drops && c.end() == len(c.lines) {
		return nil
	}
	var views []foreignRule
	for _, line := range c.lines {
		v := foreignRule{accepts: strings.HasSuffix(line, "-j ACCEPT")}
		for _, e := range wanted {
			if line == strings.Join(e.rule(t.Name), " ") {
				v.exception = e
			}
		}
		views = append(views, v)
	}
	if placed(views, c.end(), wanted) {
		return nil
	}
	return wanted
}

// rule returns the exception as arguments of iptables, in the form in which it prints them.
func (e exception) rule(comment string) []string {
	return append(e.iptables(), "-m", "comment", "--comment", comment, "-j", "ACCEPT")
}

// legacyDrops lists chains of iptables-legacy in the thread's namespace.
func (t Table) legacyDrops(x Exempt) (all []ForeignDrop, err error) {
	err = legacyChains(func(c legacyChain) error {
		if len(c.lacks(t, x)) > 0 {
			all = append(all, ForeignDrop{Family: c.family, Table: "filter", Chain: c.name, Hook: strings.ToLower(c.name), Program: "iptables-legacy", Fixable: true})
		}
		return nil
	}, func(family, name string) {
		var commands []string
		for _, e := range t.exceptions("forward", family, x) {
			commands = append(commands, name+" -A FORWARD "+strings.Join(e.iptables(), " ")+" -j ACCEPT")
		}
		all = append(all, ForeignDrop{Family: family, Table: "filter", Chain: "FORWARD", Hook: "forward", Program: "iptables-legacy",
			Remedy: fmt.Sprintf("If `%s -S FORWARD` shows \"-P FORWARD DROP\", run `%s`.", name, strings.Join(commands, " && "))})
	})
	return all, err
}

// acceptInLegacy makes exceptions in the thread's namespace.
func (t Table) acceptInLegacy(x Exempt) error {
	return legacyChains(func(c legacyChain) error {
		wanted := c.lacks(t, x)
		if len(wanted) == 0 {
			return nil
		}
		if err := t.removeLegacy(c); err != nil {
			return err
		}
		c, err := readLegacy(c.family, c.program, c.name)
		if err != nil {
			return err
		}
		for i, e := range wanted {
			args := append([]string{"-w", lockSeconds, "-I", c.name, strconv.Itoa(c.end() + i + 1)}, e.rule(t.Name)...)
			if err := runLegacy(c.program, args...); err != nil {
				return err
			}
		}
		return nil
	}, nil)
}

// removeFromLegacy removes exceptions in the thread's namespace.
func (t Table) removeFromLegacy() error {
	return legacyChains(func(c legacyChain) error { return t.removeLegacy(c) }, nil)
}

func (t Table) removeLegacy(c legacyChain) error {
	for _, line := range c.lines {
		if !strings.HasSuffix(line, "-m comment --comment "+t.Name+" -j ACCEPT") {
			continue
		}
		if err := runLegacy(c.program, append([]string{"-w", lockSeconds, "-D", c.name}, strings.Fields(line)...)...); err != nil {
			return err
		}
	}
	return nil
}

func runLegacy(name string, args ...string) error {
	if out, err := program.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
