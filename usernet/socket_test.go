package usernet

import "testing"

func TestLocalControl(t *testing.T) {
	for _, tt := range []struct {
		name, system string
		allowed      []string
		want         string
	}{
		{"the usual system", "cubic", []string{"reno", "cubic"}, ""},
		{"reno is fine", "reno", []string{"reno"}, ""},
		{"BBR, cubic foreverybody", "bbr", []string{"reno", "bbr", "cubic"}, "cubic"},
		{"BBR, cubic for root only", "bbr", []string{"reno", "bbr"}, "reno"},
		{"an unreadable list", "bbr", nil, "reno"},
	} {
		if got := localControl(tt.system, tt.allowed); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
