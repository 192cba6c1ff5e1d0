// Package look defines the colours, light and dark, and the fonts that all pictures of
// Cleat share: the benchmark's report and the drawing of `cleat graph`.
//
// Text has a contrast of at least 4.5:1 with its background, and the series s1 … s8 at
// least 3:1 (WCAG 2.1, 1.4.3 and 1.4.11).
package look
