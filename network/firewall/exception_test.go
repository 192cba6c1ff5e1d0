package firewall

import "testing"

// Exceptions belong behind rules that do anything but accept, and before the end.
func TestPlaced(t *testing.T) {
	in, out := exception{option: "-i", name: "cl-", prefix: true}, exception{option: "-o", name: "cl-", prefix: true}
	from, to := foreignRule{exception: in, accepts: true}, foreignRule{exception: out, accepts: true}
	accept, jump, drop := foreignRule{accepts: true}, foreignRule{}, foreignRule{}
	for _, tt := range []struct {
		name  string
		rules []foreignRule
		end   int
		want  bool
	}{
		{"none", nil, 0, false},
		{"both", []foreignRule{from, to}, 2, true},
		{"one", []foreignRule{from}, 1, false},
		{"behind others", []foreignRule{jump, accept, from, to}, 4, true},
		{"before others", []foreignRule{from, to, jump}, 3, false},
		{"before others that accept", []foreignRule{from, to, accept}, 3, true},
		{"one before others", []foreignRule{from, jump, to}, 3, false},
		{"both before and behind", []foreignRule{from, to, jump, from, to}, 5, true},
		{"before the end", []foreignRule{jump, from, to, drop}, 3, true},
		{"behind the end", []foreignRule{jump, drop, from, to}, 1, false},
	} {
		if got := placed(tt.rules, tt.end, []exception{in, out}); got != tt.want {
			t.Errorf("%s: placed is %v, want %v", tt.name, got, tt.want)
		}
	}
}
