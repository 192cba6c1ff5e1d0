package named_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"cleat/internal/program"
	"cleat/network/named"
	"cleat/network/networktest"
)

// sh runs a script on the host, and skips the test if the machine lacks one of the programs.
func (tb *testbed) sh(script string, programs ...string) string {
	tb.t.Helper()
	for _, p := range programs {
		if _, err := program.Find(p); err != nil {
			tb.t.Skipf("no program %s", p)
		}
	}
	var out []byte
	must(tb.t, tb.onHost(func() (err error) {
		cmd := exec.Command("sh", "-ec", script)
		cmd.Env = append(cmd.Environ(), "PATH="+program.SearchPath())
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("%s: %w: %s", script, err, out)
		}
		return err
	}))
	return string(out)
}

// foreign is a program whose rules drop what is forwarded.
type foreign struct {
	name   string
	start  func(tb *testbed) (run func(script string) string)
	drop   string   // makes the rules
	spoil  []string // scripts that remove exceptions, or put rules before them
	rules  string   // prints the rules
	remedy string   // what the user is to type, if there are no exceptions
}

func plainShell(programs ...string) func(tb *testbed) func(string) string {
	return func(tb *testbed) func(string) string {
		return func(script string) string { return tb.sh(script, programs...) }
	}
}

var foreigners = []foreign{
	{
		name:  "iptables-nft, as Docker",
		start: plainShell("iptables-nft", "ip6tables-nft"),
		drop: `for i in iptables-nft ip6tables-nft; do
			$i -w -P FORWARD DROP; $i -w -N DOCKER-USER; $i -w -A DOCKER-USER -j RETURN; $i -w -A FORWARD -j DOCKER-USER
		done`,
		spoil: []string{"iptables-nft -w -F FORWARD; ip6tables-nft -w -F FORWARD", "iptables-nft -w -A FORWARD -p sctp -j DROP"},
		rules: "iptables-nft -S; ip6tables-nft -S",
	},
	{
		name:  "iptables-legacy",
		start: plainShell("iptables-legacy", "ip6tables-legacy"),
		drop:  `for i in iptables-legacy ip6tables-legacy; do $i -w -P FORWARD DROP; $i -w -A FORWARD -p icmp -j DROP || $i -w -A FORWARD -p icmpv6 -j DROP; $i -w -A FORWARD -j REJECT; done`,
		spoil: nil, // the kernel reports no changes of these tables
		rules: "iptables-legacy -S; ip6tables-legacy -S",
	},
	{
		name:  "ufw",
		start: func(tb *testbed) func(string) string { return networktest.UFW(tb.t, tb.host).Run },
		drop:  "ufw --force enable",
		spoil: []string{"ufw reload", "iptables -F; ufw reload"},
		rules: "iptables -S; ip6tables -S",
	},
	{
		name:  "ufw that rejects",
		start: func(tb *testbed) func(string) string { return networktest.UFW(tb.t, tb.host).Run },
		drop:  `ufw default reject routed; ufw --force enable`,
		spoil: []string{"ufw reload"},
		rules: "iptables -S; ip6tables -S",
	},
	{
		name:   "firewalld",
		start:  func(tb *testbed) func(string) string { return networktest.Firewalld(tb.t, tb.host).Run },
		drop:   "true",
		remedy: "Run `firewall-cmd --permanent --zone=trusted --add-interface=cl-+ --add-interface=clr+ && firewall-cmd --reload`.",
		rules:  "true",
	},
	{
		name:   "nft",
		start:  plainShell("nft"),
		drop:   `printf 'table inet mine { chain f { type filter hook forward priority 5; policy drop; ct state established accept; }\n}' | nft -f -`,
		remedy: "Run `nft 'insert rule inet mine f iifname \"cl-*\" accept; insert rule inet mine f oifname \"cl-*\" accept; insert rule inet mine f iifname \"clr*\" accept; insert rule inet mine f oifname \"clr*\" accept'`.",
		rules:  "true",
	},
}

// Networks work on a host where another program drops what is forwarded: either the first
// network makes exceptions, which the keeper restores and which go with the last network, or its
// note says what to type.
func TestForeignFirewalls(t *testing.T) {
	for _, f := range foreigners {
		for _, driver := range []string{named.Bridge, named.Routed} {
			t.Run(f.name+", "+driver, func(t *testing.T) { f.test(t, driver) })
		}
	}
}

func (f foreign) test(t *testing.T, driver string) {
	tb := newTestbed(t, "a", "b")
	run := f.start(tb)
	run(f.drop)
	before := run(f.rules)
	notes := tb.createNotes(named.NetworkSpec{Name: "web", Driver: driver, Subnets: subnets(1)})
	must(t, tb.create(named.NetworkSpec{Name: "db", Driver: driver, Subnets: subnets(2)}))
	tb.startKeeper()
	for _, c := range []string{"a", "b"} {
		_, err := tb.connect("web", c, named.Connection{})
		must(t, err)
	}
	answer(t, tb.outside, 80)
	answer(t, tb.containers["b"], 80)
	works := func(when string) {
		t.Helper()
		deadline := time.Now().Add(20 * time.Second)
		for ask(tb.containers["a"], "198.51.100.2:80") == "" || ask(tb.containers["a"], "[fd00:1::3]:80") == "" {
			if time.Now().After(deadline) {
				t.Fatalf("%s: a does not reach others\n%s", when, run(f.rules))
			}
		}
	}
	if f.remedy != "" {
		f.testRemedy(tb, notes, run)
		return
	}
	if len(notes) > 0 {
		t.Errorf("notes %q, want none", notes)
	}
	works("at first")
	tb.check()
	for _, script := range f.spoil {
		run(script)
		works(script)
		tb.eventuallyRight()
	}
	must(t, tb.remove("web", true))
	if now := run(f.rules); !strings.Contains(now, "cleat-net") {
		t.Errorf("the exceptions went with a network that was not the last:\n%s", now)
	}
	must(t, tb.remove("db", true))
	if now := run(f.rules); strings.Contains(now, "cleat-net") || len(f.spoil) == 0 && now != before {
		t.Errorf("rules after the last network:\n%s\nbefore the first:\n%s", now, before)
	}
}

// testRemedy does what the note of the command says, and expects that it helps.
func (f foreign) testRemedy(tb *testbed, notes []string, run func(string) string) {
	t := tb.t
	if len(notes) != 1 || !strings.HasSuffix(notes[0], f.remedy) {
		t.Fatalf("notes %q, want one with %q", notes, f.remedy)
	}
	if got := ask(tb.containers["a"], "198.51.100.2:80"); got != "" {
		t.Error("nothing drops packets")
	}
	found := tb.differences()
	if len(found) != 1 || found[0].Remedy != f.remedy {
		t.Errorf("differences %v, want one with this remedy", found)
	}
	_, command, _ := strings.Cut(f.remedy, "`")
	run(strings.TrimSuffix(command, "`."))
	for _, to := range []string{"198.51.100.2:80", "10.20.1.3:80", "[fd00:1::3]:80"} {
		if got := ask(tb.containers["a"], to); got == "" {
			t.Errorf("%s is not reached after the remedy", to)
		}
	}
	tb.check()
}

func (tb *testbed) createNotes(spec named.NetworkSpec) (notes []string) {
	tb.t.Helper()
	must(tb.t, tb.onHost(func() error {
		got, err := named.Create(tb.t.Context(), tb.cfg, spec)
		if err == nil {
			notes = got.Notes
		}
		return err
	}))
	return notes
}

func (tb *testbed) differences() (found []named.Difference) {
	tb.t.Helper()
	must(tb.t, tb.onHost(func() (err error) {
		found, err = named.Check(tb.t.Context(), tb.cfg)
		return err
	}))
	return found
}

// eventuallyRight waits until the keeper has put everything right.
func (tb *testbed) eventuallyRight() {
	tb.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		found := tb.differences()
		if len(found) == 0 {
			return
		}
		if time.Now().After(deadline) {
			tb.t.Fatalf("differences remain: %v", found)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
