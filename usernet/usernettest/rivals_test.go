package usernettest_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"cleat/lab"
	"cleat/usernet/usernettest"

	"golang.org/x/sys/unix"
)

var (
	long          = flag.Bool("long", false, "1 GB in integrity cases, 10,000 connections, 1,024 streams")
	rivals        = flag.Bool("rivals", false, "run the rivals that are installed as well")
	all           = flag.Bool("all", false, "run the whole suite on the reference and on the data path by itself as well")
	update        = flag.Bool("update", false, "write the rivals' results into testdata")
	patience      = flag.Duration("patience", 0, "how long a case may hang; 0: 30 s")
	ordinaryCases = flag.String("ordinary", "to-server|connect/refused|udp/echo|ping/answered|dns|end/", "the cases to run as an ordinary user")
	cases         = flag.String("cases", "", "run only cases whose names match this regular expression")
)

// settings returns the settings from the command line.
func settings() usernettest.Settings {
	return usernettest.Settings{Long: *long, Short: testing.Short(), Timeout: *patience}
}

func match(t *testing.T) *regexp.Regexp {
	re, err := regexp.Compile(*cases)
	if err != nil {
		t.Fatal(err)
	}
	return re
}

// TestRivals records what other data paths can do. Their failures are not ours: they are
// logged, and with -update written to testdata.
func TestRivals(t *testing.T) {
	lab.Need(t)
	if !*rivals {
		t.Skip("rivals run only with -rivals")
	}
	for _, r := range []struct {
		name string
		find func() (usernettest.Path, error)
	}{{"pasta", usernettest.Pasta}, {"slirp4netns", usernettest.Slirp4netns}} {
		t.Run(r.name, func(t *testing.T) {
			p, err := r.find()
			if err != nil {
				t.Skip(err)
			}
			results := usernettest.Record(t, p, settings(), match(t))
			table := usernettest.Table(results)
			t.Logf("%s %s\n%s", p.Name, p.Version, table)
			if !*update || *cases != "" {
				return
			}
			file := filepath.Join("testdata", p.Name+".txt")
			if err := os.WriteFile(file, fmt.Appendf(nil, "%s %s on Linux %s\n%s", p.Name, p.Version, release(), table), 0o644); err != nil {
				t.Error(err)
			}
		})
	}
}

// release returns the kernel's release.
func release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
