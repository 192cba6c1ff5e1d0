package attach

import (
	"os"
	"path/filepath"
	"testing"
)

// TestDirsOfNameServers has the directories go that were not there before, and the others
// stay: of /etc/netns/NAME/resolv.conf both may be missing.
func TestDirsOfNameServers(t *testing.T) {
	for _, tt := range []struct {
		name, there string
		missing     int
	}{{"all", "etc", 2}, {"one", "etc/netns", 1}, {"none", "etc/netns/web", 0}} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			there := filepath.Join(root, tt.there)
			if err := os.MkdirAll(there, 0o755); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(root, "etc/netns/web/resolv.conf")
			text := []byte("nameserver 192.0.2.53\n")
			m := textWritten{Path: path, Text: text, MadeDirs: missingDirs(path)}
			if m.MadeDirs != tt.missing {
				t.Errorf("%d directories are missing, want %d", m.MadeDirs, tt.missing)
			}
			c := &conf{path: path}
			if err := m.write(c, text); err != nil {
				t.Fatal(err)
			}
			for range 2 { // twice is harmless
				if err := m.putBack(c); err != nil {
					t.Fatal(err)
				}
			}
			if left, err := os.ReadDir(there); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}
