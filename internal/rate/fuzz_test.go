package rate

import (
	"math"
	"testing"
)

// FuzzParse reads rates. A whole one is written so that it is read again the same.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"100M", "2.5G", "1e9", "0x1p3", "NaN", "inf", "-1", "9007199254740993", "1T"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := Parse(text)
		if err != nil {
			return
		}
		if !(v > 0) || math.IsInf(v, 0) {
			t.Fatalf("%q is %v", text, v)
		}
		if v < 1 || v > 1<<53 || v != math.Trunc(v) {
			return
		}
		if again, err := Parse(Text(int64(v))); err != nil || again != v {
			t.Errorf("%q is %v, then %v, %v", text, v, again, err)
		}
	})
}
