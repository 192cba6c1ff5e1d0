package ui

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// browser is a headless Chromium with one page. It is controlled by the Chrome DevTools Protocol over pipes, whose
// messages are JSON and end with a zero byte.
type browser struct {
	t    *testing.T
	in   *os.File
	page string // id of the session with the page

	mu      sync.Mutex
	last    int
	answers map[int]chan message
	console []string // errors and warnings of the page
	asked   []string // addresses of its requests
}

type message struct {
	ID     int             `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Page   string          `json:"sessionId,omitempty"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// answerWithin bounds the time of each command, on a slow machine too.
const answerWithin = time.Minute

// newBrowser starts a browser, which ends with the test. The test is skipped if there is none.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	var path string
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("no Chromium is installed (Debian: chromium)")
	}
	theirIn, in, err := os.Pipe()
	must(t, err)
	out, theirOut, err := os.Pipe()
	must(t, err)
	dir, err := os.MkdirTemp("", "cleat-browser-")
	must(t, err)
	cmd := exec.CommandContext(context.Background(), path, "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--user-data-dir="+dir, "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+dir)
	cmd.ExtraFiles = []*os.File{theirIn, theirOut} // 3 and 4
	must(t, cmd.Start())
	must(t, theirIn.Close())
	must(t, theirOut.Close())
	b := &browser{t: t, in: in, answers: map[int]chan message{}}
	read := make(chan struct{})
	go func() { defer close(read); b.read(out) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		in.Close()
		out.Close()
		<-read
		os.RemoveAll(dir)
	})
	var target struct {
		ID string `json:"targetId"`
	}
	b.do("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct {
		ID string `json:"sessionId"`
	}
	b.do("Target.attachToTarget", map[string]any{"targetId": target.ID, "flatten": true}, &session)
	b.page = session.ID
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		b.do(domain+".enable", nil, nil)
	}
	return b
}

// do sends a command and decodes its result.
func (b *browser) do(method string, params, into any) {
	b.t.Helper()
	b.mu.Lock()
	b.last++
	id, c := b.last, make(chan message, 1)
	b.answers[id] = c
	b.mu.Unlock()
	text, err := json.Marshal(params)
	must(b.t, err)
	text, err = json.Marshal(message{ID: id, Method: method, Params: text, Page: b.page})
	must(b.t, err)
	_, err = b.in.Write(append(text, 0))
	must(b.t, err)
	select {
	case m, ok := <-c:
		switch {
		case !ok:
			b.t.Fatalf("%s: the browser has ended", method)
		case m.Error != nil:
			b.t.Fatalf("%s: %s", method, m.Error.Message)
		case into != nil:
			must(b.t, json.Unmarshal(m.Result, into))
		}
	case <-time.After(answerWithin):
		b.t.Fatalf("%s: no answer", method)
	}
}

func (b *browser) read(out *os.File) {
	r := bufio.NewReader(out)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, c := range b.answers {
				close(c)
			}
			b.answers = nil
			return
		}
		var m message
		if json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m) != nil {
			continue
		}
		b.mu.Lock()
		if c := b.answers[m.ID]; c != nil {
			delete(b.answers, m.ID)
			c <- m
		}
		b.note(m)
		b.mu.Unlock()
	}
}

// note remembers what a page must not do.
func (b *browser) note(m message) {
	switch m.Method {
	case "Runtime.exceptionThrown", "Log.entryAdded":
		b.console = append(b.console, string(m.Params))
	case "Runtime.consoleAPICalled":
		b.console = append(b.console, string(m.Params))
	case "Network.requestWillBeSent":
		var p struct {
			Request struct {
				URL string `json:"url"`
			} `json:"request"`
		}
		if json.Unmarshal(m.Params, &p) == nil {
			b.asked = append(b.asked, p.Request.URL)
		}
	}
}

// open opens an address in a window of a width, with a theme.
func (b *browser) open(url string, width, height int, theme string) {
	b.t.Helper()
	b.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	b.do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": theme}}}, nil)
	b.do("Page.navigate", map[string]any{"url": url}, nil)
}

// eval returns the value of an expression in the page.
func (b *browser) eval(expression string) any {
	b.t.Helper()
	var r struct {
		Result struct {
			Value any `json:"value"`
		} `json:"result"`
		Exception json.RawMessage `json:"exceptionDetails"`
	}
	b.do("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	if r.Exception != nil {
		b.t.Fatalf("%s: %s", expression, r.Exception)
	}
	return r.Result.Value
}

// until waits until an expression is true.
func (b *browser) until(expression string) {
	b.t.Helper()
	for deadline := time.Now().Add(answerWithin); b.eval("Boolean("+expression+")") != true; {
		if time.Now().After(deadline) {
			b.t.Fatalf("still not: %s; the page says: %v", expression, b.eval("document.body.innerText"))
		}
		b.eval("new Promise((r) => setTimeout(r, 50))")
	}
}

// press presses a key.
func (b *browser) press(key string) {
	b.t.Helper()
	codes := map[string]int{"Tab": 9, "Enter": 13, "Escape": 27}
	text := map[string]string{"Enter": "\r"}[key]
	down := map[string]any{"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": codes[key], "text": text}
	b.do("Input.dispatchKeyEvent", down, nil)
	b.do("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": codes[key]}, nil)
}

// keep writes a picture of the whole page to the directory CLEAT_UI_SCREENSHOTS, if that is set.
func (b *browser) keep(name string) {
	b.t.Helper()
	dir := os.Getenv("CLEAT_UI_SCREENSHOTS")
	if dir == "" {
		return
	}
	var shot struct {
		Data string `json:"data"`
	}
	b.do("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	must(b.t, err)
	must(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}

// check fails the test if the page has written to the console or asked somebody else.
func (b *browser) check(origin string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, text := range b.console {
		b.t.Errorf("console of the page: %s", text)
	}
	for _, url := range b.asked {
		if !strings.HasPrefix(url, origin+"/") {
			b.t.Errorf("the page asked %s", url)
		}
	}
	if len(b.asked) == 0 {
		b.t.Error("no request was seen")
	}
	b.console, b.asked = nil, nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("set up: %w", err))
	}
}
