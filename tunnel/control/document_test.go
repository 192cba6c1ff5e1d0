package control

import (
	"encoding/json"
	"flag"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cleat/tunnel"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestStates(t *testing.T) {
	for _, tt := range []struct {
		want             State
		of               tunnel.Status
		down, open, live bool
	}{
		{Live, tunnel.Status{Up: true}, false, true, true},
		{Dead, tunnel.Status{Up: true}, false, true, false},
		{Dead, tunnel.Status{Up: true, Silent: true}, false, true, false},
		{Dead, tunnel.Status{AnsweredAgo: 1}, false, true, false},
		{Waiting, tunnel.Status{}, false, true, false},
		{Absent, tunnel.Status{Up: true}, false, false, false},
		{Absent, tunnel.Status{}, false, false, false},
		{Down, tunnel.Status{Up: true}, true, false, false},
		{Down, tunnel.Status{Up: true}, true, true, true},
	} {
		p := tunnel.PathStatus{Open: tt.open}
		p.PathConfig.Down, p.Live = tt.down, tt.live
		if got := stateOf(tt.of, p); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

// TestStatusBeforeAnAnswer checks that a tunnel without a peer has the configured form.
func TestStatusBeforeAnAnswer(t *testing.T) {
	w := httptest.NewRecorder()
	handler(silentTarget{newFake("x")}).ServeHTTP(w, httptest.NewRequest("GET", "/v1/status", nil))
	for _, want := range []string{`"up": false`, `"form_in_use": "auto"`, `"cipher": ""`, `"paths": []`} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("no %s in %s", want, w.Body)
		}
	}
}

// silentTarget is a Target whose other end has not answered.
type silentTarget struct{ *fake }

func (silentTarget) Status() tunnel.Status { return tunnel.Status{} }

// TestStatusOfSilentPeer checks the document and the metrics about a peer that has
// answered once, with and without a session, and about one that never has.
func TestStatusOfSilentPeer(t *testing.T) {
	now := began.Add(time.Hour)
	path := tunnel.PathStatus{PathConfig: tunnel.PathConfig{Name: "dsl"}, Open: true, InUse: true, AnsweredAgo: 50 * time.Second}
	for _, tt := range []struct {
		name  string
		of    tunnel.Status
		state TunnelState
		since time.Time
	}{
		{"answers", tunnel.Status{Up: true, AnsweredAgo: 1}, TunnelUp, time.Time{}},
		{"has just begun", tunnel.Status{Up: true}, TunnelUp, time.Time{}},
		{"silent", tunnel.Status{Up: true, Silent: true, AnsweredAgo: 40 * time.Second}, TunnelDown, now.Add(-40 * time.Second)},
		{"silent from the beginning", tunnel.Status{Up: true, Silent: true}, TunnelDown, time.Time{}},
		{"keys expired", tunnel.Status{AnsweredAgo: time.Minute}, TunnelDown, now.Add(-time.Minute)},
		{"never answered", tunnel.Status{}, TunnelWaiting, time.Time{}},
	} {
		tt.of.Paths = []tunnel.PathStatus{path}
		tt.of.Paths[0].Live = tt.state == TunnelUp
		doc := statusOf(fixed{newFake("x"), tt.of}, now)
		wantState, wantSince := Dead, now.Add(-50*time.Second)
		switch tt.state {
		case TunnelUp:
			wantState, wantSince = Live, time.Time{}
		case TunnelWaiting:
			wantState, wantSince = Waiting, time.Time{}
		}
		p := doc.Paths[0]
		if doc.State != tt.state || doc.Up != (tt.state == TunnelUp) || !doc.NoAnswerSince.Equal(tt.since) || p.State != wantState || !p.NoAnswerSince.Equal(wantSince) || !p.InUse {
			t.Errorf("%s: %s, up %v, no answer since %v; path: %+v", tt.name, doc.State, doc.Up, doc.NoAnswerSince, p)
		}
		all, err := parseMetrics(metricsText(doc))
		if err != nil {
			t.Fatal(err)
		}
		sample := func(name, labels string) float64 { return all[prefix+name].samples[`tunnel="x"`+labels] }
		const dsl = `,path="dsl"`
		if sample("up", "") != boolValue(doc.Up) || sample("no_answer_since_seconds", "") != epochSeconds(tt.since) ||
			sample("path_live", dsl) != boolValue(wantState == Live) || sample("path_in_use", dsl) != 1 || sample("path_no_answer_since_seconds", dsl) != epochSeconds(wantSince) {
			t.Errorf("%s: metrics\n%s", tt.name, metricsText(doc))
		}
	}
}

// fixed is a Target with a fixed status.
type fixed struct {
	*fake
	status tunnel.Status
}

func (f fixed) Status() tunnel.Status { return f.status }

// TestStatusDocument checks the names in the document, which programs depend on.
func TestStatusDocument(t *testing.T) {
	doc := statusOf(newFake("office"), began.Add(time.Hour))
	doc.PID, doc.UID = 4711, 0
	got, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	checkGolden(t, "status.json", append(got, '\n'))
}

// checkGolden compares got with a file of testdata, or writes the file.
func checkGolden(t *testing.T, file string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s: -want +got (-update writes it):\n%s", path, d)
	}
}
