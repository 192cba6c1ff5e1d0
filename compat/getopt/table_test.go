package getopt

import (
	"errors"
	"strings"
	"testing"
)

// wishes collects the values of the sample table's options.
type wishes struct {
	loud, quiet, help bool
	mtu               string
}

var sampleTable = Table[wishes]{Rows: []Row[wishes]{
	{Name: "loud", Short: 'l', Help: "Say more", Apply: Set(func(w *wishes) *bool { return &w.loud })},
	{Name: "mtu", Arg: "MTU", Help: "Bytes", Apply: func(w *wishes, v string) error {
		if v == "" {
			return errors.New("is empty")
		}
		w.mtu = v
		return nil
	}},
	{Name: "quiet", Apply: Set(func(w *wishes) *bool { return &w.quiet })},
	{Name: "a-name-that-leaves-no-room", Short: 'a', Arg: "X", Help: "At length", Apply: Accept[wishes]},
	{Name: "mac", Short: 'M', Arg: "ADDR", Apply: Refuse[wishes]("there is none")},
	{Name: "help", Short: 'h', Help: "This", Apply: Last(func(w *wishes) *bool { return &w.help })},
}}

func TestTableReads(t *testing.T) {
	for _, r := range []struct {
		name, args string
		inOrder    bool
		want       wishes
		rest, err  string
	}{
		{name: "nothing"},
		{name: "from left to right", args: "--mtu 1 -l x --mtu=2 -a y", want: wishes{loud: true, mtu: "2"}, rest: "x"},
		{name: "in order", args: "-l x --quiet", inOrder: true, want: wishes{loud: true}, rest: "x --quiet"},
		{name: "the last", args: "-lh --quiet --bogus", want: wishes{loud: true, help: true}, err: "stop parsing options"},
		{name: "refused", args: "-l -M 02:00", want: wishes{loud: true}, err: "-M 02:00: is not supported: there is none"},
		{name: "wrong", args: "--mtu=", err: "--mtu: is empty"},
		{name: "the form is wrong", args: "-l --bogus x", want: wishes{loud: true}, err: "unrecognized option '--bogus'"},
	} {
		t.Run(r.name, func(t *testing.T) {
			table := sampleTable
			table.InOrder = r.inOrder
			var got wishes
			rest, err := table.Read(&got, strings.Fields(r.args))
			if got != r.want || strings.Join(rest, " ") != r.rest {
				t.Errorf("%+v and %q, want %+v and %q", got, rest, r.want, r.rest)
			}
			text := ""
			if err != nil {
				text = err.Error()
			}
			if text != r.err {
				t.Errorf("error %q, want %q", text, r.err)
			}
		})
	}
}

func TestTableWritesHelp(t *testing.T) {
	const want = `  -l, --loud                    Say more
      --mtu MTU                 Bytes
  -a, --a-name-that-leaves-no-room X
                                At length
  -h, --help                    This
`
	var b strings.Builder
	sampleTable.WriteHelp(&b)
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", &b, want)
	}
}
