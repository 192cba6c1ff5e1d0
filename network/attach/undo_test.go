package attach

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// TestUndoWithoutOVS checks the note about what remains if ovs-vsctl is gone.
func TestUndoWithoutOVS(t *testing.T) {
	t.Setenv("PATH", "")
	u := &undoer{session: &session{}}
	if err := (&undoOVS{Name: "veth7", Port: "br0"}).undo(u); err != nil || len(u.notes) != 1 || !strings.Contains(u.notes[0], "port veth7 of Open vSwitch bridge br0") {
		t.Errorf("notes %q, %v", u.notes, err)
	}
}

// TestUndoEncoding checks that each kind of record is encoded as encoding/json does by
// default, and decoded again.
func TestUndoEncoding(t *testing.T) {
	type plain Undo
	fields := reflect.TypeFor[Undo]()
	for i := range fields.NumField() {
		t.Run(fields.Field(i).Name, func(t *testing.T) {
			var one, back Undo
			f := reflect.ValueOf(&one).Elem().Field(i)
			f.Set(reflect.New(f.Type().Elem()))
			got, err := json.Marshal(entry{Undo: &one})
			if err != nil {
				t.Fatal(err)
			}
			want, err := json.Marshal(map[string]plain{"undo": plain(one)})
			if err != nil || string(got) != string(want) {
				t.Errorf("got %s, want %s, %v", got, want, err)
			}
			read := entry{Undo: &back}
			if err := json.Unmarshal(got, &read); err != nil || !reflect.DeepEqual(one, back) {
				t.Errorf("read back %+v, %v", back, err)
			}
		})
	}
}
