// Package look is what the pictures of Cleat have in common: the colours, in
// light and in dark, and the fonts. The benchmark's report and the drawing of
// `cleat graph` are made of it.
//
// Text has a contrast of at least 4.5:1 with its backgrounds, and the series
// s1 … s8 at least 3:1 (WCAG 2.1, 1.4.3 and 1.4.11).
package look
