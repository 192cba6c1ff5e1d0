package firewall

import (
	"strings"
	"testing"
)

// Packets that the host forwards meet rules about VRFs only if a network is in one.
func TestRulesAboutVRFs(t *testing.T) {
	for _, f := range families {
		for _, l := range []layout{{features: ofSeveral}, {features: inVRFs}} {
			var about []string
			for _, s := range f.sets(l) {
				if strings.HasSuffix(s.name, "-vrf") {
					about = append(about, "set "+s.name)
				}
			}
			for _, c := range f.chains(l) {
				if strings.HasSuffix(c.name, "-vrf") {
					about = append(about, "chain "+c.name)
				}
				for _, r := range c.rules {
					if strings.Contains(r.comment, "VRF") && c.name != chainJudged {
						about = append(about, "rule "+r.comment)
					}
				}
			}
			if (len(about) > 0) != l.has(inVRFs) {
				t.Errorf("%s, networks in VRFs %v: %q", f.name, l.has(inVRFs), about)
			}
		}
	}
}
