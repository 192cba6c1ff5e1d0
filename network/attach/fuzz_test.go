package attach

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cleat/network/dhcp"
	"cleat/network/journal"
)

// FuzzFiles reads damaged files of the state directory. No file may crash the program,
// and a journal keeps the records that can be read.
func FuzzFiles(f *testing.F) {
	f.Add([]byte(`{"begin":{"attachment":{"version":1,"id":"docker.web.eth0","container":{"name":"web"},"want":{"kind":"bridge"}},"host":{"inode":1},"container":{"inode":2}}}
{"undo":{"link":{"where":{"inode":2},"name":"eth0","mac":"02:00:00:00:00:01"}}}
{"made":{"index":7,"steps":["a"]}}
`))
	f.Add([]byte("{\"undo\":{}}\n{\"undo\":{\"moved\":{},\"lease\":null}}\nnull\n[]\n{\"begin\":{}}\n{\"torn"))
	f.Add([]byte(`{"client":{},"address":"192.0.2.10/24","server":"192.0.2.1","got":{"wall":"2026-01-02T03:04:05Z"},"unset":{"routes":[{"to":"0.0.0.0/0"}]}}`))
	f.Add([]byte(`{"version":1,"id":"x","want":{"ip":["192.0.2.10/24"],"mac":"x"}}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(dir, "x.json")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if a, err := readAttachment(path); err == nil {
			_ = a.label() + a.Container.QualifiedName()
			a.Container.Matches("web")
			_ = a.Spec.Validate()
		}
		records, err := journal.Read(path)
		if lines := bytes.Count(text, []byte("\n")); err == nil && len(records) != lines {
			t.Errorf("%d records, want %d, one for each line", len(records), lines)
		}
		all, _ := parse(records)
		for _, one := range all.undos {
			if _, err := json.Marshal(one); err != nil {
				t.Errorf("can't be encoded again: %v", err)
			}
		}
		if l, err := readLease(path); err == nil && l != nil {
			now, _ := dhcp.Now()
			l.Next(now)
			l.Pending.after(&l.Lease, &dhcp.Lease{Address: netip.MustParsePrefix("192.0.2.9/24")}, 1500)
			changedText(&l.Lease, &l.Lease)
		}
	})
}

// FuzzIDs looks for two attachments with the same ID, and for an ID that is not a safe
// file name.
func FuzzIDs(f *testing.F) {
	f.Add("web", "eth0.5", "web.eth0", "5")
	f.Add("web", "eth0%2E5", "web", "eth0.5")
	f.Add(".", "..", "a/b", "~detached")
	f.Fuzz(func(t *testing.T, name, link, otherName, otherLink string) {
		one, other := idOf(Container{Engine: "docker", Name: name}, link), idOf(Container{Engine: "docker", Name: otherName}, otherLink)
		if same := name == otherName && link == otherLink; same != (one == other) {
			t.Errorf("the ID of %q of %q is %q, that of %q of %q is %q", link, name, one, otherLink, otherName, other)
		}
		if strings.ContainsAny(one, "/~\x00") || !strings.HasPrefix(one, "docker.") {
			t.Errorf("the ID of %q of %q is %q", link, name, one)
		}
	})
}
