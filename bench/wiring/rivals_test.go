package wiring_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/bench/wiring"
	"cleat/lab"
	"cleat/link"
)

// rivals maps the networks that run another program over several links to the program.
var rivals = map[string]string{"mpt": "mptsrv", "mlvpn": "mlvpn", "glorytun": "glorytun"}

// TestRivalsAreAbsent checks the remedy for a program that is not installed.
func TestRivalsAreAbsent(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for network, remedy := range map[string]string{"mpt": "SPYFF/mpt", "mlvpn": "zehome/MLVPN", "glorytun": "angt/glorytun (branch stable)"} {
		var lack *link.Lack
		if err := wiring.Check(network); !errors.As(err, &lack) || !strings.Contains(lack.Remedy, remedy) {
			t.Errorf("%s: %v", network, err)
		}
	}
}

// standIns puts a script on the PATH under the name of each program.
func standIns(t *testing.T, script string) {
	t.Helper()
	bin := t.TempDir()
	for _, name := range rivals {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

// overLinks returns the Config of a network of one pair over links of 100 Mbit/s.
func overLinks(t *testing.T, network string, links int) wiring.Config {
	return wiring.Config{Spec: wiring.Spec{Network: network, Links: links, RateBitsPerSec: 100e6}, Pairs: 1, Scratch: scratch(t)}
}

// TestRivalsAreStarted runs stand-ins that record their arguments.
func TestRivalsAreStarted(t *testing.T) {
	lab.Need(t)
	for network, want := range map[string]string{
		"mpt":      "mptsrv -d",
		"mlvpn":    "mlvpn --debug --yes-run-as-root --user root --config ",
		"glorytun": "glorytun bind 0.0.0.0 ",
	} {
		t.Run(network, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "log")
			standIns(t, fmt.Sprintf("#!/bin/sh\necho ${0##*/} \"$@\" >>%s\nexec sleep 60\n", log))
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			w, err := wiring.Build(ctx, overLinks(t, network, 2))
			skipLacking(t, err)
			if err == nil {
				w.Close()
				t.Fatal("a stand-in that does nothing carries traffic")
			}
			if output, _ := os.ReadFile(log); !strings.Contains(string(output), want) {
				t.Errorf("called as %q, want %q; %v", output, want, err)
			}
		})
	}
}

// TestRivalsThatEnd checks that a program that ends is not waited for, and that its
// output is in the error.
func TestRivalsThatEnd(t *testing.T) {
	lab.Need(t)
	standIns(t, "#!/bin/sh\necho no such ship >&2\nexit 1\n")
	for network := range rivals {
		t.Run(network, func(t *testing.T) {
			began := time.Now()
			w, err := wiring.Build(t.Context(), overLinks(t, network, 2))
			skipLacking(t, err)
			if err == nil {
				w.Close()
				t.Fatal("a program that has ended carries traffic")
			}
			if !strings.Contains(err.Error(), "its program has ended; output of its program: no such ship") {
				t.Error(err)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %s to report that", took)
			}
		})
	}
}

// TestRivalsHaveRoom checks how many links each program supports.
func TestRivalsHaveRoom(t *testing.T) {
	lab.Need(t)
	standIns(t, "#!/bin/sh\nexit 1\n")
	for network, limit := range map[string]int{"mpt": 20, "glorytun": 32} {
		for _, links := range []int{limit, limit + 1} {
			w, err := wiring.Build(t.Context(), overLinks(t, network, links))
			skipLacking(t, err)
			if err == nil {
				w.Close()
			}
			var never *wiring.NotApplicable
			if got, want := errors.As(err, &never), links > limit; got != want {
				t.Errorf("%s over %d links: %v", network, links, err)
			}
		}
	}
}

// TestRivalsCarry runs the programs themselves where they are installed, and mlvpn only
// in a root lab (CLEAT_TEST_LAB=root).
func TestRivalsCarry(t *testing.T) {
	lab.Need(t)
	for network, program := range rivals {
		for _, best := range []bool{false, true} {
			for _, links := range []int{4, 12} {
				t.Run(fmt.Sprintf("%s/best settings %t/%d", network, best, links), func(t *testing.T) {
					cfg := overLinks(t, network, links)
					cfg.BestSettings = best
					w, err := wiring.Build(t.Context(), cfg)
					skipLacking(t, err)
					if err != nil {
						t.Fatal(err)
					}
					carries(t, w, links)
					if err := w.Close(); err != nil {
						t.Errorf("close: %v", err)
					}
					nothingLeft(t, cfg.Scratch, program)
				})
			}
		}
	}
}

// carries checks that a stream reaches at least 10 Mbit/s and uses all links.
func carries(t *testing.T, w *wiring.Network, links int) {
	t.Helper()
	_, right := ends(w)
	var before []uint64
	for n := range links {
		before = append(before, received(t, right, fmt.Sprintf("l%d", n+1)))
	}
	if r := transfer(t, w, false, 2*time.Second); r.BytesReceived < 10e6/8*2 {
		t.Errorf("%d bytes arrived", r.BytesReceived)
	}
	for n := range links {
		if got := received(t, right, fmt.Sprintf("l%d", n+1)) - before[n]; got < 20e3 {
			t.Errorf("link %d carried %d bytes", n+1, got)
		}
	}
}

// nothingLeft reports processes of a program, its files, and files of the network.
func nothingLeft(t *testing.T, dir, program string) {
	t.Helper()
	var left []string
	for end := time.Now().Add(2 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left = running(program)
		if len(left) == 0 || time.Now().After(end) {
			break
		}
	}
	if len(left) > 0 {
		t.Errorf("%s still runs: %q", program, left)
	}
	files, err := filepath.Glob(dir + "/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"/run/" + program + "*", "/run/user/0/" + program + "*", "/tmp/" + program + ".*"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, more...)
	}
	if len(files) > 0 {
		t.Errorf("files left behind: %q", files)
	}
}

// running returns the processes of a program in the lab.
func running(program string) (pids []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, file := range all {
		comm, _ := os.ReadFile(file)
		stat, _ := os.ReadFile(filepath.Dir(file) + "/stat")
		if strings.TrimSpace(string(comm)) == program && !slices.Contains(strings.Fields(string(stat)), "Z") {
			pids = append(pids, filepath.Dir(file))
		}
	}
	return pids
}
