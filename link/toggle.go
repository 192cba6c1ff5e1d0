package link

import (
	"fmt"
	"strconv"
	"strings"
)

// Toggle is a switch that can be on, off or left to the kernel.
type Toggle string

// The values of a Toggle.
const (
	Default Toggle = "" // the kernel's default
	On      Toggle = "on"
	Off     Toggle = "off"
)

func toggleOf(on bool) Toggle {
	if on {
		return On
	}
	return Off
}

// boolean is a bool whose default is false: a byte or, with size 0, an attribute
// that is present or absent.
type boolean struct {
	p    *bool
	size int
}

func bool8(p *bool) boolean { return boolean{p: p, size: 1} }
func flag(p *bool) boolean  { return boolean{p: p} }

func (v boolean) isZero() bool    { return !*v.p }
func (v boolean) valid() bool     { return true }
func (v boolean) allowed() string { return "true or false" }
func (v boolean) text() string    { return strconv.FormatBool(*v.p) }

func (v boolean) setText(s string) bool {
	on, ok := parseSwitch(s)
	*v.p = on
	return ok
}

func (v boolean) encode(linkNames) ([]byte, error) {
	if v.size == 0 {
		return nil, nil
	}
	return []byte{1}, nil // false is never sent
}

func (v boolean) decode(b []byte, _ linkNames) error {
	if len(b) == 0 && v.size == 0 {
		*v.p = true
		return nil
	}
	n, err := getUint(b, 1, false) // some drivers accept a flag and report a byte
	*v.p = n != 0
	return err
}

func parseSwitch(s string) (on, ok bool) {
	switch strings.ToLower(s) {
	case "true", "on", "yes", "1":
		return true, true
	case "false", "off", "no", "0":
		return false, true
	}
	return false, false
}

// toggle is a Toggle, in an attribute of one byte.
type toggle struct{ p *Toggle }

func (v toggle) isZero() bool    { return *v.p == Default }
func (v toggle) valid() bool     { return *v.p == Default || *v.p == On || *v.p == Off }
func (v toggle) allowed() string { return "on, off or default" }
func (v toggle) text() string    { return string(*v.p) }

func (v toggle) setText(s string) bool {
	if s == "" || s == "default" {
		*v.p = Default
		return true
	}
	on, ok := parseSwitch(s)
	*v.p = toggleOf(on)
	return ok
}

func (v toggle) encode(linkNames) ([]byte, error) {
	if *v.p == On {
		return []byte{1}, nil
	}
	return []byte{0}, nil
}

func (v toggle) decode(b []byte, _ linkNames) error {
	n, err := getUint(b, 1, false)
	*v.p = toggleOf(n != 0)
	return err
}

// option is one value of a choice: its text and the kernel's number for it.
type option struct {
	text   string
	number uint32
}

// choice is one of a few strings; "" is the kernel's default.
type choice[S ~string] struct {
	p       *S
	size    int
	big     bool // network byte order
	options []option
}

func (v choice[S]) isZero() bool { return *v.p == "" }

func (v choice[S]) valid() bool {
	_, ok := v.number()
	return ok || *v.p == ""
}

func (v choice[S]) number() (uint32, bool) {
	for _, o := range v.options {
		if o.text == string(*v.p) {
			return o.number, true
		}
	}
	return 0, false
}

func (v choice[S]) allowed() string {
	var all []string
	for _, o := range v.options {
		all = append(all, o.text)
	}
	return strings.Join(all, ", ")
}

func (v choice[S]) text() string { return string(*v.p) }

func (v choice[S]) setText(s string) bool {
	*v.p = S(s)
	return v.valid()
}

func (v choice[S]) encode(linkNames) ([]byte, error) {
	n, _ := v.number()
	return putUint(n, v.size, v.big), nil
}

func (v choice[S]) decode(b []byte, _ linkNames) error {
	n, err := getUint(b, v.size, v.big)
	if err != nil {
		return err
	}
	*v.p = S(fmt.Sprintf("%#x", n))
	for _, o := range v.options {
		if o.number == n {
			*v.p = S(o.text)
		}
	}
	return nil
}
