package policy

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestManual checks the tables of rules, destinations and outcomes in doc/policy.md, that
// its example file parses, and that its list of built-in denials is complete.
func TestManual(t *testing.T) {
	b, err := os.ReadFile("../doc/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	code := regexp.MustCompile("`([^`]+)`")
	rows := 0
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || !strings.HasPrefix(cells[0], " `") {
			continue
		}
		rows++
		var rules Rules
		for _, r := range code.FindAllStringSubmatch(cells[0], -1) {
			if err := rules.add(strings.Fields(r[1])); err != nil {
				t.Fatal(err)
			}
		}
		want := map[string]string{"allowed": "allow", "refused": "refuse"}[strings.TrimSpace(cells[2])]
		d := newPolicy(t, Config{Rules: rules}).Explain(flow(t, strings.Trim(cells[1], " `")))
		if got := verdict(d.Action, d.To); got != want {
			t.Errorf("%s is %s: %s", strings.TrimSpace(line), got, d.Reason)
		}
	}
	if rows < 15 {
		t.Errorf("only %d rows were found", rows)
	}

	_, file, _ := strings.Cut(text, "```\n# build.policy")
	file, _, _ = strings.Cut(file, "```")
	if r, err := Parse("doc/policy.md", strings.NewReader("#"+file)); err != nil || len(r.Rules) != 4 || r.Default != DenyAll {
		t.Errorf("the file: %v, %v", r, err)
	}
	for _, d := range builtins() {
		name := d.prefix.String()
		if d.prefix.IsSingleIP() {
			name = d.prefix.Addr().String()
		}
		if !strings.Contains(text, "`"+name+"`") {
			t.Errorf("the built-in denial of %s (%s) is not in the manual", name, d.why)
		}
	}
}
