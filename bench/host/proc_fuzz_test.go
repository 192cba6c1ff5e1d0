package host

import (
	"strings"
	"testing"
)

// FuzzProc parses files of /proc and /sys whose content processes partly choose.
func FuzzProc(f *testing.F) {
	f.Add("1 (a) b) S 1 1 1 0 -1 4194560 1 0 0 0 5 6 7 8 20 0 1 0 100 1 1")
	f.Add("CONFIG_TUN=m\nCONFIG_X=\"y\"\n")
	f.Add("Rss: 10 kB\nAnonymous:   3 kB\n")
	f.Add("0-3,8,10-11")
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = parseProcess([]byte(text))
		_, _ = parseRollup(text)
		_ = parseConfig(text)
		_ = kernelParameters(text)
		if all := parseList(text); len(all) > (maxCPUs+1)*(1+strings.Count(text, ",")) {
			t.Errorf("%d processors", len(all))
		}
	})
}
