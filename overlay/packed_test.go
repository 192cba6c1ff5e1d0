package overlay

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"cleat/overlay/registry"
)

// fill sets every field of a value to something else than its zero value.
func fill(t *testing.T, v reflect.Value, path string) {
	t.Helper()
	switch v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.MustParseAddr("2001:db8::1")))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("text of " + path)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		v.SetInt(300)
	case reflect.Uint16:
		v.SetUint(uint64(40000 + len(path)))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), path+"."+v.Type().Field(i).Name)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(t, v.Index(i), fmt.Sprint(path, i))
		}
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"b": "c", "a": "d"}))
	default:
		t.Fatalf("%s has a kind that fill does not know: %s", path, v.Kind())
	}
}

// TestPackedKeepsEveryField fails if Endpoint has a field that pack does not know.
func TestPackedKeepsEveryField(t *testing.T) {
	of := endpointsOf{"web", "a"}
	var full registry.Endpoint
	fill(t, reflect.ValueOf(&full).Elem(), "endpoint")
	full.Network, full.Host = of.network, of.host
	for name, e := range map[string]registry.Endpoint{"full": full, "empty": {Network: "web", Host: "a"}} {
		if got := unpack(of, pack(e)); !reflect.DeepEqual(got, e) {
			t.Errorf("%s: %+v, want %+v", name, got, e)
		}
	}
}

// TestPackedIsAMap changes endpoints at random, and compares with a map.
func TestPackedIsAMap(t *testing.T) {
	of := endpointsOf{"web", "a"}
	random := rand.New(rand.NewPCG(1, 2))
	want := map[string]registry.Endpoint{}
	var p packed
	for i := range 2000 {
		id := fmt.Sprint(random.IntN(40))
		e := registry.Endpoint{Network: "web", Host: "a", ID: id, Container: fmt.Sprint("docker:", i), Names: []string{strings.Repeat("x", random.IntN(200))}}
		if random.IntN(3) == 0 {
			delete(want, id)
			p = p.remove(id)
		} else {
			want[id] = e
			p = p.set(e)
		}
		if i%7 == 0 {
			p = p.clip()
		}
		if p.count() != len(want) {
			t.Fatalf("after %d changes there are %d, want %d", i, p.count(), len(want))
		}
	}
	var all []registry.Endpoint
	for id, e := range want {
		all = append(all, e)
		if got, ok := p.get(of, id); !ok || !reflect.DeepEqual(got, e) {
			t.Errorf("%s: %v %+v, want %+v", id, ok, got, e)
		}
	}
	slices.SortFunc(all, func(a, b registry.Endpoint) int { return strings.Compare(a.ID, b.ID) })
	if got := p.all(of); !reflect.DeepEqual(got, all) {
		t.Errorf("%+v, want %+v", got, all)
	}
	if _, ok := p.get(of, "none"); ok {
		t.Error("an endpoint that does not exist is found")
	}
}

// TestHeld checks that endpoints are deflated once they have not changed for a while, and that they stay what they were.
func TestHeld(t *testing.T) {
	of := endpointsOf{"web", "a"}
	ends := map[endpointsOf]held{}
	end := func(i int) registry.Endpoint {
		return registry.Endpoint{Network: "web", Host: "a", ID: fmt.Sprint(i), Container: fmt.Sprintf("docker:service-%d", i)}
	}
	for i := range 100 {
		store(ends, of, end(i), false)
	}
	store(ends, of, end(3), false)
	want := ends[of].open().all(of)
	d, err := newDeflater()
	must(t, err)
	for i, deflated := range []bool{false, true, true} {
		h, err := d.shrink(ends[of])
		must(t, err)
		ends[of] = h
		if (h.deflated != nil) != deflated || h.count != 100 || !reflect.DeepEqual(h.open().all(of), want) {
			t.Errorf("%d: %+v", i, h)
		}
	}
	store(ends, of, end(100), false)
	store(ends, of, end(5), true)
	store(ends, of, end(1000), true)
	if h := ends[of]; h.deflated != nil || h.count != 100 || h.open().count() != 100 {
		t.Errorf("after a change: %+v", h)
	}
	for i := range 101 {
		store(ends, of, end(i), true)
	}
	if len(ends) != 0 {
		t.Errorf("%v is left", ends)
	}
}

// count returns the number of endpoints.
func (p packed) count() (n int) {
	for r := unpacker(p); len(r) > 0; n++ {
		r.bytes()
	}
	return n
}
