package vm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMirrors(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"nothing configured", nil, nil},
		{"one-line format", map[string]string{"sources.list": `
# deb http://192.0.2.9/debian bookworm main
deb http://192.0.2.1/debian bookworm main contrib # ours
deb-src http://192.0.2.2/debian bookworm main
deb http://192.0.2.3/debian-security bookworm-security main
`}, []string{"http://192.0.2.1/debian"}},
		{"one-line options", map[string]string{"sources.list.d/a.list": "deb\t[ arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg ]\t" +
			"http://192.0.2.1/debian trixie\tmain\n"}, []string{"http://192.0.2.1/debian"}},
		{"deb822", map[string]string{"sources.list.d/debian.sources": `
Types: deb deb-src
# a comment
URIs: http://192.0.2.1/debian
  http://192.0.2.2/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://192.0.2.3/debian
Suites: sid
Components: main
Enabled: no
`}, []string{"http://192.0.2.1/debian", "http://192.0.2.2/debian"}},
		{"third parties", map[string]string{
			"sources.list.d/vpn.list":    "deb [signed-by=/usr/share/keyrings/vpn.gpg] http://192.0.2.1/vpn bookworm main\n",
			"sources.list.d/docker.list": "deb http://192.0.2.2/docker bookworm stable\n",
			"sources.list.d/node.sources": "Types: deb\nURIs: http://192.0.2.3/node\nSuites: nodistro\nComponents: main\n" +
				"Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n -----END PGP PUBLIC KEY BLOCK-----\n",
			"sources.list.d/old.list.disabled": "deb http://192.0.2.4/debian bookworm main\n",
		}, nil},
		{"each once, in order", map[string]string{
			"sources.list":            "deb http://192.0.2.2/debian bookworm main\ndeb http://192.0.2.1/debian trixie main\n",
			"sources.list.d/bpo.list": "deb http://192.0.2.2/debian bookworm-backports main\n",
		}, []string{"http://192.0.2.2/debian", "http://192.0.2.1/debian"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "sources.list.d"), 0o755); err != nil {
				t.Fatal(err)
			}
			for name, text := range tt.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := mirrors(dir)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" && len(tt.want)+len(got) > 0 {
				t.Errorf("mirrors (-want +got):\n%s", d)
			}
		})
	}
}

func TestDependency(t *testing.T) {
	var got []string
	for _, m := range dependency.FindAllStringSubmatch(" dracut | initramfs-tools (>= 0.120+deb8u2) | x, linux-base-7.2.13+deb14-amd64 (= 7.2.13-1), kmod", -1) {
		got = append(got, m[1])
	}
	if d := cmp.Diff([]string{"dracut", "linux-base-7.2.13+deb14-amd64", "kmod"}, got); d != "" {
		t.Errorf("dependencies (-want +got):\n%s", d)
	}
}
