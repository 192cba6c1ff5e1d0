package usernettest

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name    string
		do      func(*T)
		verdict Verdict
		why     string
	}{
		{"passes", func(x *T) { x.Must(nil) }, Pass, ""},
		{"fails", func(x *T) { x.Must(errors.New("broken")) }, Fail, "broken"},
		{"fails twice", func(x *T) { x.Errorf("one"); x.Errorf("two") }, Fail, "one; two"},
		{"skips", func(x *T) { x.Skipf("no %s", "curl") }, Skip, "no curl"},
		{"times out in Await", func(x *T) { x.Await(func() error { return errors.New("not yet") }) }, Fail, "timed out: not yet"},
		{"hangs", func(x *T) { <-x.ctx.Done() }, Fail, "timed out"},
		{"fails in one half of Both", func(x *T) {
			x.Both(func() error { return errors.New("left") }, func() error { return nil })
		}, Fail, "left"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cleaned := false
			r := try(context.Background(), c.name, Settings{Timeout: 50 * time.Millisecond}, func(x *T) {
				x.Cleanup(func() { cleaned = true })
				c.do(x)
			})
			if r.Verdict != c.verdict || r.Reason != c.why {
				t.Errorf("%s, %q; want %s, %q", r.Verdict, r.Reason, c.verdict, c.why)
			}
			if !cleaned {
				t.Error("Cleanup was not called")
			}
		})
	}
}
