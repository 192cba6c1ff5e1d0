package ui

import (
	"fmt"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"cleat/overlay/control"
)

// TestPage loads the page in a browser, at two widths and in two themes. It must show the same as the picture, write
// nothing to the console and ask nobody else.
func TestPage(t *testing.T) {
	b := newBrowser(t)
	windows := []struct {
		name          string
		width, height int
	}{{"desktop", 1440, 900}, {"phone", 390, 844}}
	pages := []struct {
		name    string
		picture func(time.Duration) control.Picture
		title   string
		boxes   int
		shows   []string
	}{
		{"well", small, "All is well", 3, []string{"3 hosts alive", "frontend", "10.65.0.0/18", "tcp 5432", "14 connections"}},
		{"broken", broken, "4 things are broken", 3, []string{"The registry does not answer host a", "Host b is not alive", "does not answer host a", "network is unreachable", "since", "nf_conntrack_acct", "not counted"}},
		{"uncounted", uncounted, "All is well", 3, []string{"No host counts the bytes", "14 connections"}},
		{"large", large, "1 thing is broken", 50, []string{"49 of 50 hosts alive", "1,000 containers", "node-50", "Host node-17 is not alive"}},
	}
	for _, page := range pages {
		for _, window := range windows {
			for _, theme := range []string{"light", "dark"} {
				name := fmt.Sprintf("%s-%s-%s", page.name, window.name, theme)
				t.Run(name, func(t *testing.T) {
					b.t = t
					f := newFake(page.picture)
					s := httptest.NewServer(Handler(Config{Source: f}))
					defer s.Close()
					b.open(s.URL+"/", window.width, window.height, theme)
					b.until(fmt.Sprintf("document.getElementById('verdict-title')?.textContent === %q", page.title))
					waits := theme == "light" || os.Getenv("CLEAT_UI_SCREENSHOTS") != "" // for rates, once is enough
					if waits && page.name != "uncounted" && page.name != "broken" {
						b.until(`[...document.querySelectorAll('.talk .sum')].some((e) => e.textContent.includes('Mbit/s'))`)
					}
					for _, text := range page.shows {
						if b.eval(fmt.Sprintf("document.body.textContent.includes(%q)", text)) != true {
							t.Errorf("the page does not show %q", text)
						}
					}
					if got := b.eval("document.querySelectorAll('.host').length"); got != float64(page.boxes) {
						t.Errorf("%v boxes", got)
					}
					if got := b.eval("document.documentElement.scrollWidth"); got != float64(window.width) {
						t.Errorf("the page is %v pixels wide", got)
					}
					if theme == "light" != (b.eval("getComputedStyle(document.querySelector('.host')).backgroundColor") == "rgb(255, 255, 255)") {
						t.Errorf("the theme is not %s", theme)
					}
					b.keep(name)
					if page.name != "broken" {
						b.eval("[...document.querySelectorAll('.head')].at(2).click()")
						b.until("document.querySelectorAll('.host.chosen').length === 1 && document.querySelectorAll('.edge.lit').length > 0")
						b.keep(name + "-chosen")
					}
					b.check(s.URL)
				})
			}
		}
	}
}

// TestStale loads the page while the node does not answer, lets it answer, and stop again.
func TestStale(t *testing.T) {
	b := newBrowser(t)
	f := newFake(small)
	f.set(control.ErrNotRunning)
	s := httptest.NewServer(Handler(Config{Source: f}))
	defer s.Close()
	verdict := func(want string) {
		t.Helper()
		b.until(fmt.Sprintf("document.getElementById('verdict-title')?.textContent === %q", want))
	}
	b.open(s.URL+"/", 1440, 900, "light")
	verdict("No data")
	b.until("document.getElementById('troubles').textContent.includes('cleat-node up')")
	f.set(nil)
	verdict("All is well")
	f.set(control.ErrNotRunning)
	verdict("Stale")
	b.until("document.getElementById('fresh').textContent.startsWith('stale since ') && document.querySelectorAll('.host').length === 3")
	b.keep("stale-desktop-light")
	f.set(nil)
	verdict("All is well")
	s.CloseClientConnections()
	s.Close()
	verdict("Stale")
	b.until("document.getElementById('troubles').textContent.includes('The server of this page does not answer')")
}

// TestInteraction uses the page with the keyboard, searches, and changes the theme. Elements must stay the same ones
// when a new picture comes.
func TestInteraction(t *testing.T) {
	b := newBrowser(t)
	f := newFake(small)
	s := httptest.NewServer(Handler(Config{Source: f}))
	defer s.Close()
	b.open(s.URL+"/", 1440, 900, "light")
	b.until("document.querySelectorAll('.talk').length === 7")

	b.eval("window.first = document.querySelector('.host'); first.querySelector('.head').focus()")
	b.press("Enter")
	b.until("document.querySelector('.host.chosen .head[aria-expanded=true]') && document.getElementById('talks-title').textContent === 'Who talks on host a'")
	if got := b.eval("document.querySelectorAll('.talk').length"); got != 4.0 {
		t.Errorf("%v talks of host a", got)
	}
	b.until("document.querySelector('.host.chosen').textContent.includes('blocks 10.64.0.0/26')")
	before := b.eval("document.querySelector('.sum').textContent")
	b.until(fmt.Sprintf("document.querySelector('.talk .sum').textContent.includes('bit/s') || %q !== document.querySelector('.sum').textContent", before))
	if b.eval("document.querySelector('.host') === first && document.activeElement === first.querySelector('.head')") != true {
		t.Error("the box was made anew, or has lost the focus")
	}
	b.press("Tab")
	if got := b.eval("document.activeElement.textContent"); got != "frontend" {
		t.Errorf("Tab leads to %v", got)
	}
	b.press("Escape")
	b.until("document.querySelectorAll('.host.chosen').length === 0 && document.querySelectorAll('.talk').length === 7")

	b.eval("document.getElementById('search').value = '10.65.0.129'; document.getElementById('search').dispatchEvent(new Event('input'))")
	b.until("document.querySelectorAll('.row.hit').length === 1 && document.querySelectorAll('.host.faded').length === 2 && document.querySelectorAll('.talk').length === 2")
	b.eval("document.getElementById('clear').click()")
	b.eval("[...document.querySelectorAll('.chip')].find((c) => c.textContent === 'data').click()")
	b.until("document.querySelectorAll('.talk').length === 2 && document.querySelectorAll('.net.faded').length === 3")

	for _, want := range []string{"light", "dark", "system"} {
		b.eval("document.getElementById('theme').click()")
		if got := b.eval("document.documentElement.dataset.theme + ' ' + document.getElementById('theme').textContent"); got != want+" Theme: "+want {
			t.Errorf("theme %v", got)
		}
		dark := b.eval("getComputedStyle(document.querySelector('.host')).backgroundColor") != "rgb(255, 255, 255)"
		if dark != (want == "dark") {
			t.Errorf("theme %s: dark is %v", want, dark)
		}
	}
	b.check(s.URL)
}

// TestHostileNames shows names that a browser must not act on.
func TestHostileNames(t *testing.T) {
	const evil = `</script><img src=x onerror="document.title='owned'"><script>document.title='owned'</script>`
	b := newBrowser(t)
	f := newFake(func(age time.Duration) control.Picture {
		p := small(age)
		p.Containers[0].Names, p.Containers[0].Container = []string{evil}, evil
		p.Hosts[1].By, p.Cluster = evil, evil
		own := p.Reports["a"]
		own.Problems = []control.Problem{{Text: evil}}
		p.Reports["a"] = own
		return p
	})
	s := httptest.NewServer(Handler(Config{Source: f}))
	defer s.Close()
	b.open(s.URL+"/", 1440, 900, "dark")
	b.until(fmt.Sprintf("[...document.querySelectorAll('.row button')].some((e) => e.textContent === %q)", evil))
	if got := b.eval("document.querySelectorAll('img').length + document.title"); got != "0✕ 1 thing is broken · Cleat" {
		t.Errorf("%v", got)
	}
	b.check(s.URL)
}
