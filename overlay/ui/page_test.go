package ui

import (
	"fmt"
	"net/http/httptest"
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
		{"well", small, "All is well", 3, []string{"3 hosts alive", "frontend", "10.65.0.0/18", "tcp 5432", "14 connections", "Mbit/s"}},
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
					if page.name != "uncounted" && page.name != "broken" {
						b.until(`[...document.querySelectorAll('.talk .sum')].some((e) => e.textContent.includes('bit/s'))`)
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
					b.check(s.URL)
				})
			}
		}
	}
}
