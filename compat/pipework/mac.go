package pipework

import (
	"crypto/md5"
	"strings"

	"cleat/link"
)

// parseMAC parses [MAC][@VLAN]. The VLAN is validated once the kind of link is known.
func (o *Options) parseMAC(text string) error {
	mac, vlan, _ := strings.Cut(text, "@")
	o.VLAN = vlan
	word, unique := strings.CutPrefix(mac, "U:")
	switch {
	case mac == "":
		return nil
	case unique && word == "":
		return wrong("e.g. U:web", "%s: the word after U: is missing", text)
	case unique:
		// An address that depends only on the word: 02 and the first five bytes of the MD5
		// sum of a line with the word, as the script computes it with echo and md5sum.
		sum := md5.Sum([]byte(word + "\n"))
		o.MAC = link.MAC{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}
		return nil
	}
	m, err := link.ParseMAC(mac)
	if err != nil {
		return wrong("e.g. 02:00:5e:10:00:01, U:WORD, or @10 for a VLAN alone", "%s: %q is not an Ethernet address", text, mac)
	}
	o.MAC = m
	return nil
}
