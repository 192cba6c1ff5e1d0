package link

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"cleat/internal/spell"

	"golang.org/x/sys/unix"
)

// field is one parameter of a kind, or one attribute of it, mostly both: its
// name in files and command lines, where the kernel keeps it, and the value
// that converts between the three forms. A kind is little more than a table of
// fields; validation, Parse, the request to the kernel and reading back all
// follow from it.
type field struct {
	name string // "" for an attribute that is no parameter of its own
	attr uint16 // type within IFLA_INFO_DATA; 0 for a parameter that is no attribute
	val  value
}

// value converts one variable of a spec. The zero of the variable means the
// kernel's default and is left out of the request.
type value interface {
	isZero() bool
	valid() bool
	allowed() string       // what valid accepts, for people
	text() string          // as Parse reads it
	setText(s string) bool // false: not of the form that allowed describes
	encode(linkNames) ([]byte, error)
	decode([]byte, linkNames) error
}

// names converts link names and numbers in the namespace where a link's parent
// or underlay is.
type linkNames interface {
	index(name string) (int, error)
	name(index int) (string, error)
}

// errLength says that an attribute from the kernel has a size that its type
// can't have.
var errLength = errors.New("attribute of unexpected length")

// check returns a *ParamError for the first field with an impossible value.
func checkValues(kind string, fields []field) error {
	for _, f := range fields {
		if !f.val.valid() {
			return &ParamError{Kind: kind, Param: f.name, Value: redact(f.val, f.val.text()), Allowed: f.val.allowed()}
		}
	}
	return nil
}

// secretive is a value that must not get into messages and reports.
type secretValue interface{ secret() }

// show is text for messages and reports: what came from a secret stays hidden.
func redact(v value, text string) string {
	if _, ok := v.(secretValue); ok && text != "" {
		return hidden
	}
	return text
}

const hidden = "(hidden)"

// paramError is for conditions between fields.
func paramError(kind, param string, value any, allowed string) error {
	return &ParamError{Kind: kind, Param: param, Value: fmt.Sprint(value), Allowed: allowed}
}

// encodeFields is the payload of IFLA_INFO_DATA (or of another nest of the same
// make).
func encodeFields(kind string, fields []field, n linkNames) ([]attribute, error) {
	var out []attribute
	for _, f := range fields {
		if f.attr == 0 || f.val.isZero() {
			continue
		}
		b, err := f.val.encode(n)
		if _, ok := f.val.(device); ok && errors.Is(err, unix.ENODEV) {
			return nil, paramError(kind, f.name, f.val.text(), "a link that exists: "+err.Error())
		}
		if err != nil {
			return nil, fmt.Errorf("encode parameter %q: %w", f.name, err)
		}
		out = append(out, attribute{Type: f.attr, Data: b})
	}
	return out, nil
}

// decodeFields fills the variables behind fields with what the kernel said.
func decodeFields(fields []field, got map[uint16][]byte, n linkNames) error {
	for _, f := range fields {
		b, ok := got[f.attr]
		if f.attr == 0 || !ok {
			continue
		}
		if err := f.val.decode(b, n); err != nil {
			return fmt.Errorf("decode parameter %q: %w", f.name, err)
		}
	}
	return nil
}

// fill sets fields from text. It reports the first problem in the order of the
// table, unknown names first.
func setParams(kind string, fields []field, params map[string]string) error {
	known := map[string]field{}
	var order []string
	for _, f := range fields {
		if f.name != "" {
			known[f.name] = f
			order = append(order, f.name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(params)) {
		if known[name].val == nil {
			return &ParamError{Kind: kind, Param: name, Value: params[name], ValidParams: spell.Order(name, order)}
		}
	}
	for _, name := range order {
		text, ok := params[name]
		f := known[name]
		if !ok || f.val.setText(text) {
			continue
		}
		return &ParamError{Kind: kind, Param: name, Value: redact(f.val, text), Allowed: f.val.allowed()}
	}
	return nil
}
