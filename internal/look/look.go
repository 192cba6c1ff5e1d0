package look

import "strings"

// CSS font stacks.
const (
	Sans = `system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", "DejaVu Sans", sans-serif`
	Mono = `ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace`
)

// Colour is a colour with a role, for light and for dark backgrounds, as "#rrggbb" or
// "#rgb".
type Colour struct{ Name, Light, Dark string }

// Colours returns all colours. The caller owns the slice.
func Colours() []Colour {
	return []Colour{
		{"bg", "#fff", "#11151a"}, {"card", "#f5f6f8", "#1a2027"}, {"text", "#1b1f24", "#e6e9ed"}, {"soft", "#59636e", "#9aa5b1"},
		{"rule", "#d5dae0", "#323a44"}, {"grid", "#e4e8ec", "#262d35"},
		{"accent", "#0b62a8", "#6db5f5"}, {"fill", "#9aa7b5", "#5d6976"}, {"best", "#2f86cf", "#3d8fd6"},
		{"warn", "#8a4b00", "#ffcf85"}, {"warnbg", "#fff3dc", "#3a2a0d"}, {"baseline", "#6e7781", "#8b96a2"},
		{"s1", "#0b62a8", "#5aa9f0"}, {"s2", "#c8500a", "#ff8a4c"}, {"s3", "#007a5a", "#3cc79a"}, {"s4", "#a8438c", "#e58fca"},
		{"s5", "#8a6100", "#e0b040"}, {"s6", "#2a8ec6", "#93d5ff"}, {"s7", "#7b4a2a", "#cf9d78"}, {"s8", "#5b5bd0", "#a9a6ff"},
		{"user", "#d98a00", "#f0b03c"}, {"system", "#0b62a8", "#4a97e0"}, {"softirq", "#00906b", "#3cc79a"},
	}
}

// Series is the number of colours s1, s2 … for data series.
const Series = 8

// Named returns the colour with a name, or the zero Colour.
func Named(name string) Colour {
	for _, c := range Colours() {
		if c.Name == name {
			return c
		}
	}
	return Colour{}
}

// CSS returns a style sheet that defines the colours and fonts as custom properties
// (--bg, --sans). They follow the reader's colour scheme; print is always light.
func CSS() string {
	var light, dark strings.Builder
	for _, c := range Colours() {
		light.WriteString("  --" + c.Name + ": " + c.Light + ";\n")
		dark.WriteString("    --" + c.Name + ": " + c.Dark + ";\n")
	}
	return ":root {\n  color-scheme: light dark;\n" + light.String() +
		"  --sans: " + Sans + ";\n  --mono: " + Mono + ";\n}\n" +
		"@media screen and (prefers-color-scheme: dark) {\n  :root {\n" + dark.String() + "  }\n}\n"
}
