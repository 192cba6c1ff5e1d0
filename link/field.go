package link

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"cleat/internal/spell"

	"golang.org/x/sys/unix"
)

// field is a parameter of a kind, an attribute of it, or, mostly, both: its name
// in files and command lines, where the kernel keeps it, and the value that
// converts between the forms. Each kind has a table of fields. Validation,
// Parse, the request to the kernel and reading back all follow from the table.
type field struct {
	name string // "" for an attribute that is no parameter by itself
	attr uint16 // type within IFLA_INFO_DATA; 0 for a parameter that is no attribute by itself
	val  value
}

// value converts one variable of a spec. The zero value of the variable selects
// the kernel's default and is left out of requests.
type value interface {
	isZero() bool
	valid() bool
	allowed() string       // describes the valid values in messages
	text() string          // as setText parses it
	setText(s string) bool // reports whether s is valid
	encode(linkNames) ([]byte, error)
	decode([]byte, linkNames) error
}

// attributeOnly is the textual half of a value that is no parameter by itself.
type attributeOnly struct{}

func (attributeOnly) valid() bool         { return true }
func (attributeOnly) allowed() string     { return "" }
func (attributeOnly) text() string        { return "" }
func (attributeOnly) setText(string) bool { return false }

// parameterOnly is the binary half of a value that is no attribute by itself.
type parameterOnly struct{}

func (parameterOnly) encode(linkNames) ([]byte, error) { return nil, nil }
func (parameterOnly) decode([]byte, linkNames) error   { return nil }

// linkNames converts between link names and interface indexes, in the namespace
// of a link's parent or underlay.
type linkNames interface {
	index(name string) (int, error)
	name(index int) (string, error)
}

// errLength is an attribute from the kernel whose size does not fit its type.
var errLength = errors.New("attribute of unexpected length")

// rule is a condition on parameters that the values of single fields don't show.
type rule struct {
	violated bool
	param    string // the parameter that the error names
	allowed  string // describes the valid values in messages
}

// validate returns a *ParamError for the first field with an invalid value, or
// else for the first rule that is violated.
func validate(kind string, fields []field, rules ...rule) error {
	for _, f := range fields {
		if !f.val.valid() {
			return paramError(kind, f.name, redact(f.val, f.val.text()), f.val.allowed())
		}
	}
	for _, r := range rules {
		if r.violated {
			f := fields[slices.IndexFunc(fields, func(f field) bool { return f.name == r.param })]
			return paramError(kind, r.param, redact(f.val, f.val.text()), r.allowed)
		}
	}
	return nil
}

// secretValue is a value that must not appear in messages.
type secretValue interface{ secret() }

// redact returns text, or a placeholder if v is secret.
func redact(v value, text string) string {
	if _, ok := v.(secretValue); ok && text != "" {
		return hidden
	}
	return text
}

const hidden = "(hidden)"

func paramError(kind, param string, value any, allowed string) error {
	return &ParamError{Kind: kind, Param: param, Value: fmt.Sprint(value), Allowed: allowed}
}

// encodeFields returns the fields that are set as the payload of IFLA_INFO_DATA,
// or of another nest that a table of fields describes.
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

// setParams sets the variables of fields from text. It returns the first error:
// unknown names first, then in the order of the table.
func setParams(kind string, fields []field, params map[string]string) error {
	var valid []string
	for _, f := range fields {
		if f.name != "" {
			valid = append(valid, f.name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(params)) {
		if !slices.Contains(valid, name) {
			return &ParamError{Kind: kind, Param: name, Value: params[name], ValidParams: spell.Order(name, valid)}
		}
	}
	for _, f := range fields {
		if text, ok := params[f.name]; ok && !f.val.setText(text) {
			return paramError(kind, f.name, redact(f.val, text), f.val.allowed())
		}
	}
	return nil
}
