package graph

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"unicode"

	"cleat/network/survey"
)

// FuzzDrawings draws surveys with arbitrary relations and names.
func FuzzDrawings(f *testing.F) {
	f.Add([]byte(`{"host":"h\u001b[2J","namespaces":[{"id":1,"label":"host","origin":"host","links":[{"index":1,"name":"br0","kind":"bridge","up":true},
		{"index":2,"name":"a\u009b\u202e<script>","kind":"veth","master":1,"peer":{"namespace_id":2,"namespace":"web","index":1,"name":"eth0","nsid":0}}]},
		{"id":2,"label":"w\neb","origin":"container","container":"w\neb","runtime":"docker","programs":[{"name":"\u0007","count":2}],"links":[
		{"index":1,"name":"eth0","kind":"veth","addresses":["192.0.2.1/24"],"peer":{"namespace_id":1,"index":2,"nsid":0},"ports":[{"name":"\u001b","error":"\u001b"}]}],
		"default_routes":[{"via":"192.0.2.2","link":"\u001b","index":1}]}],"notes":["\u001b"]}`))
	f.Add([]byte(`{"namespaces":[{"id":1,"links":[{"index":1,"master":1,"parent":{"namespace_id":1,"index":1},"underlay":{"namespace_id":1,"index":1}}]}]}`))
	f.Add([]byte(`{"namespaces":[{"id":1,"links":[{"index":1,"master":2},{"index":2,"master":1}]},{"id":1,"links":[{"index":1}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var s survey.Survey
		if json.Unmarshal(text, &s) != nil {
			return
		}
		for _, all := range []bool{false, true} {
			var drawn, svg bytes.Buffer
			if err := Text(&drawn, &s, Options{All: all}, Terminal{}); err != nil {
				t.Fatal(err)
			}
			if err := SVG(&svg, &s, Options{All: all}); err != nil {
				t.Fatal(err)
			}
			for name, b := range map[string]string{"text": drawn.String(), "SVG": svg.String()} {
				if i := strings.IndexFunc(b, func(r rune) bool { return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) }); i >= 0 {
					t.Errorf("%s has %q", name, b[i:min(len(b), i+20)])
				}
			}
			for d := xml.NewDecoder(&svg); ; {
				if _, err := d.Token(); err == io.EOF {
					break
				} else if err != nil {
					t.Fatalf("the SVG is no XML: %v", err)
				}
			}
		}
	})
}
