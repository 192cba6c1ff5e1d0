package summary

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"cleat/bench/cell"
)

// mostWarnings is how many warnings a summary has at most: more are not read,
// and samples.jsonl holds every one.
const mostWarnings = 8

// limited cuts a list of warnings to mostWarnings and says so.
func limited(warnings []string) []string {
	if len(warnings) <= mostWarnings {
		return warnings
	}
	kept := warnings[: mostWarnings-1 : mostWarnings-1]
	return append(kept, fmt.Sprintf("%d more kinds of warnings: see %s", len(warnings)-len(kept), SamplesFile))
}

// lateStart recognises clients that were not connected when the measurement
// began, which many pairs say with as many different times.
var lateStart = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^started (\S+) after --start-at`)
})

// grouped says once what samples warn of, with how many do unless all n do or n
// is 0: warnings[i] is what one sample says.
func grouped(warnings [][]string, n int) []string {
	texts := map[string][]string{} // by kind
	count := map[string]int{}      // samples
	for _, one := range warnings {
		seen := map[string]bool{}
		for _, w := range one {
			k := WarningKind(w)
			texts[k] = append(texts[k], w)
			if !seen[k] {
				seen[k] = true
				count[k]++
			}
		}
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(texts)) {
		text := worstStart(texts[k])
		if text == "" {
			text = MergeWarnings(texts[k])
		}
		if n > 0 && (count[k] < n || strings.HasPrefix(text, "started late")) {
			text = cell.Plural(count[k], "sample") + ": " + text
		}
		out = append(out, text)
	}
	return out
}

// worstStart says of late starts how late the latest was; "" for other texts.
func worstStart(texts []string) string {
	var worst time.Duration
	for _, t := range texts {
		m := lateStart().FindStringSubmatch(t)
		if m == nil {
			return ""
		}
		d, err := time.ParseDuration(m[1])
		if err != nil {
			return ""
		}
		worst = max(worst, d)
	}
	if worst < time.Second {
		return "started late (worst " + cell.Digits(worst.Seconds()*1000) + " ms)"
	}
	return "started late (worst " + cell.Digits(worst.Seconds()) + " s)"
}

// WarningKind is what warnings have in common that differ in their numbers only.
func WarningKind(text string) string {
	var b strings.Builder
	at := 0
	for _, n := range numbers(text) {
		b.WriteString(text[at:n.from] + "#")
		at = n.to
	}
	b.WriteString(text[at:])
	return strings.ReplaceAll(b.String(), "# sample:", "# samples:")
}

// MergeWarnings makes one text of warnings of one kind: a number in which they
// differ becomes the range of it. Texts of different kinds: the last by the
// alphabet.
func MergeWarnings(texts []string) string {
	texts = slices.Clone(texts)
	slices.Sort(texts)
	if texts = slices.Compact(texts); len(texts) == 0 {
		return ""
	}
	last := texts[len(texts)-1] // has the plural, if one has
	low := numbers(last)
	high := slices.Clone(low)
	for _, t := range texts {
		if WarningKind(t) != WarningKind(last) {
			return last
		}
		for i, n := range numbers(t) {
			if n.low.value < low[i].low.value {
				low[i].low = n.low
			}
			if n.high.value > high[i].high.value {
				high[i].high = n.high
			}
		}
	}
	var b strings.Builder
	at := 0
	for i, n := range numbers(last) {
		b.WriteString(last[at:n.from] + low[i].low.text)
		if low[i].low.value != high[i].high.value {
			b.WriteString("–" + high[i].high.text)
		}
		at = n.to
	}
	return b.String() + last[at:]
}

// numeral is a number in a text, or a range of numbers: where it stands, and its
// ends.
type numeral struct {
	from, to  int
	low, high amount
}

// amount is a number as it is written and what it is worth, ns of a time.
type amount struct {
	text  string
	value float64
}

func readAmount(text string) amount {
	if x, err := strconv.ParseFloat(text, 64); err == nil {
		return amount{text, x}
	}
	d, _ := time.ParseDuration(text) // which numeralText lets through only if it is one
	return amount{text, float64(d)}
}

// numeralText matches numbers, and times as Go writes them.
var numeralText = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\d+(?:\.\d+)?(?:(?:ns|µs|ms|s|m|h)(?:\d+(?:\.\d+)?(?:ns|µs|ms|s|m))*\b)?`)
})

// numbers finds the numbers of a text, but not those inside a word: a device's
// name is a part of what a warning says.
func numbers(text string) []numeral {
	var out []numeral
	for _, at := range numeralText().FindAllStringIndex(text, -1) {
		before, _ := utf8.DecodeLastRuneInString(text[:at[0]])
		if at[0] > 0 && (unicode.IsLetter(before) || before == '_') {
			continue
		}
		n := readAmount(text[at[0]:at[1]])
		if last := len(out) - 1; last >= 0 && text[out[last].to:at[0]] == "–" {
			out[last].to, out[last].high = at[1], n
			continue
		}
		out = append(out, numeral{at[0], at[1], n, n})
	}
	return out
}
