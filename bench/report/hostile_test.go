package report

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"unicode"
)

// evil is in every text of a result directory that somebody else has made.
const evil = "\x1b]0;owned\a\u009b31m\u202e<script>alert(1)</script>\n| a | b |\xff"

// poison appends to every text that a value holds, but to those that choose what is done.
func poison(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() {
			v.SetString(v.String() + evil)
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			poison(v.Elem())
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			poison(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && v.Type().Field(i).Name != "Metric" {
				poison(v.Field(i))
			}
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			if one := v.MapIndex(k); one.Kind() == reflect.Interface && one.Elem().Kind() == reflect.String {
				v.SetMapIndex(k, reflect.ValueOf(one.Elem().String()+evil))
			} else {
				poison(one)
			}
		}
	}
}

// Whatever the texts are in a directory of results, a terminal acts on nothing in the table,
// and a browser on nothing in the page.
func TestHostileResults(t *testing.T) {
	in := quickInput()
	poison(reflect.ValueOf(&in).Elem())
	var table, page bytes.Buffer
	if err := (Terminal{Width: 80}).Table(&table, in); err != nil {
		t.Fatal(err)
	}
	if err := HTML(&page, in); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(table.String(), "owned") || !strings.Contains(page.String(), "owned") {
		t.Error("no text of the results is shown")
	}
	for name, text := range map[string]string{"table": table.String(), "page": page.String()} {
		if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) }); i >= 0 {
			t.Errorf("%s: %q", name, text[max(0, i-60):min(len(text), i+20)])
		}
	}
	if strings.Contains(page.String(), "<script>") {
		t.Error("the page has a script")
	}
}
