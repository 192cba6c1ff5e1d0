package procstat

import "testing"

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name, text          string
		ok                  bool
		comm, state, parent string
	}{
		{"plain", "7 (sleep) S 1 2", true, "sleep", "S", "1"},
		{"a name like the rest", "7 (a) R 1 (b) S 9\n", true, "a) R 1 (b", "S", "9"},
		{"cut off", "7 (sleep) S", true, "sleep", "S", ""},
		{"only a name", "7 (sleep)", true, "sleep", "", ""},
		{"no name", "7 S 1 2", false, "", "", ""},
		{"parentheses reversed", "7 )x(", false, "", "", ""},
		{"empty", "", false, "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, ok := Parse([]byte(tt.text))
			if ok != tt.ok || s.Name != tt.comm || s.Field(3) != tt.state || s.Field(4) != tt.parent {
				t.Errorf("got %+v, %v", s, ok)
			}
		})
	}
}
