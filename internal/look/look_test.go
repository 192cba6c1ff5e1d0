package look

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestCSSDefinesEveryColourTwice(t *testing.T) {
	css := CSS()
	for _, c := range Colours() {
		for _, one := range []string{c.Light, c.Dark} {
			if !regexp.MustCompile(`^#([0-9a-f]{3}|[0-9a-f]{6})$`).MatchString(one) {
				t.Errorf("%s: %q is no colour", c.Name, one)
			}
			if !strings.Contains(css, "--"+c.Name+": "+one+";") {
				t.Errorf("the style sheet lacks --%s: %s", c.Name, one)
			}
		}
		if Named(c.Name) != c {
			t.Errorf("Named(%q) is another colour", c.Name)
		}
	}
}

// luminance is that of WCAG 2.1.
func luminance(t *testing.T, hex string) float64 {
	t.Helper()
	hex = strings.TrimPrefix(hex, "#")
	if len(hex) == 3 {
		hex = string([]byte{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]})
	}
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		v := float64(n) / 255
		if v <= 0.04045 {
			v /= 12.92
		} else {
			v = math.Pow((v+0.055)/1.055, 2.4)
		}
		sum += weight * v
	}
	return sum
}

func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	x, y := luminance(t, a), luminance(t, b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

func TestContrast(t *testing.T) {
	least := map[string]float64{"text": 4.5, "soft": 4.5, "warn": 4.5, "accent": 4.5}
	for i := range Series {
		least[fmt.Sprintf("s%d", i+1)] = 3
	}
	for name, want := range least {
		c := Named(name)
		for _, on := range []string{"bg", "card"} {
			back := Named(on)
			if got := contrast(t, c.Light, back.Light); got < want {
				t.Errorf("%s on %s, light: contrast %.2f, want %.1f", name, on, got, want)
			}
			if got := contrast(t, c.Dark, back.Dark); got < want {
				t.Errorf("%s on %s, dark: contrast %.2f, want %.1f", name, on, got, want)
			}
		}
	}
}
