package remote_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"cleat/bench/remote"
	"cleat/bench/wiring"
	"cleat/link"
)

func TestParseAddress(t *testing.T) {
	for _, tt := range []struct {
		text string
		want remote.Address
		why  string // of the error
	}{
		{"ssh://db1", remote.Address{Host: "db1"}, ""},
		{"ssh://root@db1:2222", remote.Address{User: "root", Host: "db1", Port: "2222"}, ""},
		{"ssh://root@[2001:db8::1]:22", remote.Address{User: "root", Host: "2001:db8::1", Port: "22"}, ""},
		{"ssh://db1/", remote.Address{Host: "db1"}, ""},
		{"db1", remote.Address{}, "want ssh://"},
		{"ssh://", remote.Address{}, "no host"},
		{"ssh://db1:port", remote.Address{}, "want ssh://"},
		{"ssh://root:secret@db1", remote.Address{}, "password"},
		{"ssh://db1/tmp", remote.Address{}, "nothing may follow"},
		{"ssh://-oProxyCommand=reboot@db1", remote.Address{}, "may not begin with -"},
		{"ssh://-Fconfig", remote.Address{}, "may not begin with -"},
		{"ssh://a%3Breboot@db1", remote.Address{}, "characters of the shell"},
	} {
		t.Run(tt.text, func(t *testing.T) {
			got, err := remote.ParseAddress(tt.text)
			var wrong *remote.AddressError
			switch {
			case tt.why == "" && (err != nil || got != tt.want):
				t.Errorf("got %+v, %v", got, err)
			case tt.why != "" && (!errors.As(err, &wrong) || !strings.Contains(wrong.Why, tt.why)):
				t.Errorf("got %v, want %q", err, tt.why)
			}
			if err != nil {
				return
			}
			if again, err := remote.ParseAddress(got.String()); err != nil || again != got {
				t.Errorf("String is %q, which is %+v, %v", got, again, err)
			}
		})
	}
}

// What a machine lacks, and why a network does not fit, are still that at the other end.
func TestFailure(t *testing.T) {
	lack := &link.Lack{What: "geneve", Reason: "no module", Remedy: "modprobe geneve"}
	never := &wiring.NotApplicable{Why: "by design"}
	for name, err := range map[string]error{"lack": lack, "never": never, "other": errors.New("broken")} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			sent := remote.Message{ID: 1, Op: remote.OpReply, Error: remote.FailureOf(fmt.Errorf("build: %w", err))}
			check(t, remote.WriteMessage(&b, sent))
			got, readErr := remote.ReadMessage(&b)
			check(t, readErr)
			var gotLack *link.Lack
			var gotNever *wiring.NotApplicable
			errors.As(got.Error, &gotLack)
			errors.As(got.Error, &gotNever)
			if got.Error.Error() != "build: "+err.Error() || (gotLack != nil && *gotLack == *lack) != (name == "lack") || (gotNever != nil && *gotNever == *never) != (name == "never") {
				t.Errorf("got %v, %v, %v", got.Error, gotLack, gotNever)
			}
		})
	}
	if remote.FailureOf(nil) != nil {
		t.Error("no error is a failure")
	}
}

func TestReadMessageRejects(t *testing.T) {
	for name, text := range map[string]string{
		"longer than any message": "\x7f\xff\xff\xff{}",
		"cut":                     "\x00\x00\x00\x09{\"op\"",
		"no JSON":                 "\x00\x00\x00\x02{[",
	} {
		t.Run(name, func(t *testing.T) {
			if m, err := remote.ReadMessage(strings.NewReader(text)); err == nil || errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("got %+v, %v", m, err)
			}
		})
	}
}

func FuzzMessage(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x1b{\"op\":\"input\",\"data\":\"aGk=\"}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := remote.ReadMessage(bytes.NewReader(text))
		if err != nil {
			return
		}
		var b bytes.Buffer
		check(t, remote.WriteMessage(&b, m))
		again, err := remote.ReadMessage(&b)
		if err != nil || again.ID != m.ID || again.Op != m.Op || !reflect.DeepEqual(again.Data, m.Data) && len(m.Data) > 0 {
			t.Errorf("%+v became %+v, %v", m, again, err)
		}
	})
}
