package bench

import (
	"reflect"
	"slices"
	"testing"
)

func TestNumbers(t *testing.T) {
	for _, tt := range []struct {
		text string
		want []int
	}{
		{"3", []int{3}}, {"1,2, 8", []int{1, 2, 8}}, {"1..4", []int{1, 2, 3, 4}}, {"1..2,12,5..5", []int{1, 2, 12, 5}},
		{"", nil}, {"4..1", nil}, {"1..", nil}, {"..3", nil}, {"1..2..3", nil}, {"1-3", nil}, {"0..99999999999", nil}, {"1..1025", nil},
	} {
		var n []int
		err := addNumbers(&n)(tt.text)
		if (err == nil) != (tt.want != nil) || err == nil && !slices.Equal(n, tt.want) {
			t.Errorf("%q: %v, %v, want %v", tt.text, n, err, tt.want)
		}
	}
}

func TestFactorLevels(t *testing.T) {
	var factors map[string][]string
	add := addFactor(&factors)
	for _, text := range []string{"variant=plain,loss", "loss=1%", "variant=flap"} {
		if err := add(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	if want := (map[string][]string{"loss": {"1%"}, "variant": {"flap"}}); !reflect.DeepEqual(factors, want) {
		t.Errorf("%v, want %v", factors, want)
	}
	for _, text := range []string{"", "variant", "=plain", "variant="} {
		if err := add(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}
