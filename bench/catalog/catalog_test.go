package catalog

import (
	"slices"
	"testing"
)

func TestRoles(t *testing.T) {
	all := Roles()
	for _, e := range All() {
		if !slices.Contains(all, e.Role) {
			t.Errorf("%s has the role %q, which is not among Roles", e.Name, e.Role)
		}
	}
	for _, r := range all {
		if r.Title() == string(r) {
			t.Errorf("the role %q has no title", r)
		}
	}
}

func TestRoleOf(t *testing.T) {
	for network, want := range map[string]Role{"veth": Container, "loopback": Baseline, ExistingPath: Existing, "unheard-of": Existing} {
		if got := RoleOf(network); got != want {
			t.Errorf("%s has the role %q, want %q", network, got, want)
		}
	}
}

func TestCompare(t *testing.T) {
	names := []string{"zzz", "aaa", "bridge", "veth", "loopback"}
	slices.SortFunc(names, Compare)
	if want := []string{"loopback", "veth", "bridge", "aaa", "zzz"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}
