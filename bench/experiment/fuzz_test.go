package experiment

import (
	"strings"
	"testing"
)

// FuzzParse parses experiment files.
func FuzzParse(f *testing.F) {
	for _, name := range PresetNames() {
		text, err := presetFiles.ReadFile("presets/" + name + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("name: x\nrepeat: 1000000000\ngroups:\n - networks: [veth]\n   pairs: [-1, 1000000]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := Parse("x.yaml", text)
		if err == nil && e.Name == "" && len(e.Groups) == 0 {
			t.Errorf("invalid: %+v", e)
		}
	})
}

// FuzzParseOnly parses the arguments of --only. String and ParseOnly must agree.
func FuzzParseOnly(f *testing.F) {
	f.Add("network=veth|bridge,mtu=1500")
	f.Fuzz(func(t *testing.T, line string) {
		o, err := ParseOnly(strings.Split(line, ","))
		if err != nil {
			return
		}
		again, err := ParseOnly(strings.Split(o.String(), ","))
		if err != nil || again.String() != o.String() {
			t.Errorf("%q is %q, then %q, %v", line, o, again, err)
		}
	})
}
