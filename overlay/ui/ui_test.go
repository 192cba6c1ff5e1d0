package ui

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"cleat/overlay/control"

	"github.com/google/go-cmp/cmp"
)

// get asks a handler as a client of a host name does.
func get(h http.Handler, host, path string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://"+host+path, nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestHeaders(t *testing.T) {
	h := Handler(Config{Source: newFake(small)})
	for _, path := range []string{"/", "/app.js", "/page.css", "/icon.svg", "/picture", "/nothing"} {
		t.Run(path, func(t *testing.T) {
			got := get(h, "127.0.0.1:7791", path).Header()
			csp := got.Get("Content-Security-Policy")
			for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'", "form-action 'none'", "base-uri 'none'"} {
				if !strings.Contains(csp, want) {
					t.Errorf("the policy %q lacks %q", csp, want)
				}
			}
			if strings.Contains(csp, "unsafe") || strings.Contains(csp, "*") || strings.Contains(csp, "http") {
				t.Errorf("the policy %q allows too much", csp)
			}
			if got.Get("X-Content-Type-Options") != "nosniff" || got.Get("Referrer-Policy") != "no-referrer" || got.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("headers %v", got)
			}
		})
	}
}

// TestFiles checks that the page refers to nothing elsewhere, and contains what its policy forbids nowhere.
func TestFiles(t *testing.T) {
	url := regexp.MustCompile(`(?i)(https?:|wss?:)?//[a-z0-9]`)
	forbidden := regexp.MustCompile(`(?i)innerHTML|outerHTML|insertAdjacentHTML|\beval\(|new Function|document\.write|<script>|<style|style="| on[a-z]+="|@import|url\(`)
	must(t, fs.WalkDir(files, "page", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := files.ReadFile(path)
		for i, line := range strings.Split(string(text), "\n") {
			line = strings.ReplaceAll(line, "http://www.w3.org/2000/svg", "") // a name, not an address
			if m := url.FindString(line); m != "" {
				t.Errorf("%s:%d has an address: %s", path, i+1, line)
			}
			if m := forbidden.FindString(line); m != "" {
				t.Errorf("%s:%d has %s", path, i+1, m)
			}
		}
		return err
	}))
}

func TestHosts(t *testing.T) {
	h := Handler(Config{Source: newFake(small), Names: []string{"node-7.example", "node-7"}})
	for host, want := range map[string]int{
		"127.0.0.1:7791": 200, "[::1]:7791": 200, "192.0.2.1:7791": 200, "localhost:7791": 200, "LOCALHOST": 200, "node-7:7791": 200, "Node-7.example.:7791": 200,
		"evil.example:7791": 421, "127.0.0.1.evil.example": 421, "localhost.evil.example:7791": 421, "": 421,
	} {
		t.Run(host, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/picture", nil)
			r.Host = host
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != want || want != 200 && strings.Contains(w.Body.String(), "frontend") {
				t.Errorf("%d: %s", w.Code, w.Body)
			}
		})
	}
}

func TestPicture(t *testing.T) {
	source := newFake(small)
	w := get(Handler(Config{Source: source}), "127.0.0.1", "/picture")
	var got control.Picture
	must(t, json.Unmarshal(w.Body.Bytes(), &got))
	if w.Code != 200 || w.Header().Get("Content-Type") != "application/json" || len(got.Hosts) != 3 || len(got.Containers) != 8 || len(got.Talks) != 7 || got.Reports["a"].Traffic == nil {
		t.Errorf("%d %v: %s", w.Code, w.Header(), w.Body)
	}
	for _, row := range []struct {
		name string
		err  error
		want failure
	}{
		{"not running", control.ErrNotRunning, failure{control.ErrNotRunning.Error(), "cleat-node up"}},
		{"refused", &control.Error{Text: "no", Hint: "type this"}, failure{"no", "type this"}},
		{"another", errors.New("ask cleat-node: reset"), failure{"ask cleat-node: reset", ""}},
	} {
		t.Run(row.name, func(t *testing.T) {
			source.set(row.err)
			w := get(Handler(Config{Source: source}), "127.0.0.1", "/picture")
			var got failure
			must(t, json.Unmarshal(w.Body.Bytes(), &got))
			if diff := cmp.Diff(row.want, got); diff != "" || w.Code != http.StatusServiceUnavailable {
				t.Errorf("%d, %s", w.Code, diff)
			}
		})
	}
}

func TestChangesNothing(t *testing.T) {
	h := Handler(Config{Source: newFake(small)})
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "http://127.0.0.1/picture", nil))
		if w.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
}

func TestMetrics(t *testing.T) {
	source := newFake(small)
	s := httptest.NewServer(Metrics(source))
	defer s.Close()
	scrape := func() (int, string) {
		r, err := http.Get(s.URL + "/metrics")
		must(t, err)
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		must(t, err)
		return r.StatusCode, string(text)
	}
	code, text := scrape()
	if code != 200 {
		t.Fatalf("%d: %s", code, text)
	}
	for _, want := range []string{
		"cleat_registry_up 1\n", `cleat_host_up{host="b"} 1`, `cleat_host_registry_member{host="c"} 1`, "cleat_problems 0\n",
		`cleat_network_containers{host="c",network="data"} 2`, `cleat_network_blocks{host="b",network="web"} 1`,
		`cleat_connections{host="a",network="web",peer="b"} 14`, `cleat_connections{host="a",network="web",peer="a"} 3`,
		`cleat_container_receive_bytes_total{container="docker:frontend",id="web-frontend",network="web"} `,
		`cleat_container_transmit_packets_total{container="docker:cache",id="web-cache",network="web"} 0`,
		"cleat_between_hosts_transmit_bytes_total ", "go_goroutines ", "process_resident_memory_bytes ",
		"# TYPE cleat_container_receive_bytes_total counter", "# TYPE cleat_host_up gauge",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	for _, foreign := range []string{"docker:postgres", `host="b",network="web",peer`} {
		if strings.Contains(text, foreign) {
			t.Errorf("it has figures of another host: %s", foreign)
		}
	}
	source.set(control.ErrNotRunning)
	if code, _ := scrape(); code == 200 {
		t.Error("figures without a node")
	}
}
