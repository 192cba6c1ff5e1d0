package nlsock

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// datagram puts messages together.
func datagram(all ...message) (b []byte) {
	for _, m := range all {
		b = native.AppendUint32(b, uint32(unix.SizeofNlMsghdr+len(m.body)))
		b = native.AppendUint16(b, m.kind)
		b = native.AppendUint16(b, m.flags)
		b = native.AppendUint32(b, m.seq)
		b = native.AppendUint32(b, m.port)
		b = append(b, m.body...)
		b = append(b, make([]byte, align(len(m.body))-len(m.body))...)
	}
	return b
}

func TestTake(t *testing.T) {
	const seq, port, kind = 7, 4711, 20
	number := func(n int32) []byte { return native.AppendUint32(nil, uint32(n)) }
	answer := message{kind, 0, seq, port, []byte("answer")}
	done := message{unix.NLMSG_DONE, 0, seq, port, number(0)}
	for _, tt := range []struct {
		name   string
		data   []byte
		sender uint32
		last   bool // what each returns
		heard  []string
		done   bool
		err    error
	}{
		{name: "an answer", data: datagram(answer), heard: []string{"answer"}},
		{name: "the only answer", data: datagram(answer, answer), last: true, heard: []string{"answer"}, done: true},
		{name: "a whole dump", data: datagram(answer, answer, done), heard: []string{"answer", "answer"}, done: true},
		{name: "another sender", data: datagram(answer, done), sender: 99},
		{name: "another sequence number", data: datagram(message{kind, 0, seq - 1, port, nil}, message{unix.NLMSG_DONE, 0, seq + 1, port, nil})},
		{name: "another port id", data: datagram(message{unix.NLMSG_ERROR, 0, seq, port + 1, number(-1)}, answer), heard: []string{"answer"}},
		{name: "an error", data: datagram(message{unix.NLMSG_ERROR, 0, seq, port, number(-int32(unix.ENOENT))}), done: true, err: unix.ENOENT},
		{name: "an acknowledgement", data: datagram(message{unix.NLMSG_ERROR, 0, seq, port, number(0)}), heard: []string{""}, done: true},
		{name: "an error at the end", data: datagram(message{unix.NLMSG_DONE, 0, seq, port, number(-int32(unix.ENOBUFS))}), done: true, err: unix.ENOBUFS},
		{name: "an end without a number", data: datagram(message{unix.NLMSG_DONE, 0, seq, port, nil}), done: true},
		{name: "no error number", data: datagram(message{unix.NLMSG_ERROR, 0, seq, port, number(1)}), done: true, err: errMalformed},
		{name: "a short error", data: datagram(message{unix.NLMSG_ERROR, 0, seq, port, []byte{0}}), done: true, err: errMalformed},
		{name: "an interrupted dump", data: datagram(message{kind, unix.NLM_F_DUMP_INTR, seq, port, []byte("part")}, done), heard: []string{"part"}, done: true, err: ErrInterrupted},
		{name: "nothing to do", data: datagram(message{unix.NLMSG_NOOP, 0, seq, port, nil}, done), done: true},
		{name: "half a header", data: datagram(answer)[:8], err: errMalformed},
		{name: "half a message", data: datagram(answer)[:unix.SizeofNlMsghdr+2], err: errMalformed},
		{name: "a message of no bytes", data: make([]byte, 64), err: errMalformed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var heard []string
			a := answers{seq: seq, port: port, each: func(_ uint16, body []byte) bool {
				heard = append(heard, string(body))
				return tt.last
			}}
			done, err := a.take(tt.data, tt.sender)
			if done != tt.done || !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) || !slices.Equal(heard, tt.heard) {
				t.Errorf("heard %q, done %v, error %v; want %q, %v, %v", heard, done, err, tt.heard, tt.done, tt.err)
			}
		})
	}
}

func TestAttributes(t *testing.T) {
	b := AppendAttribute(nil, 1, []byte("one"))
	b = AppendAttribute(b, 2|unix.NLA_F_NESTED, nil)
	b = AppendAttribute(b, 3, []byte("four"))
	for _, tail := range [][]byte{nil, {1}, {3, 0, 9, 0}, {200, 0, 9, 0}} {
		var got []uint16
		for kind, data := range Attributes(append(slices.Clip(b), tail...)) {
			got = append(got, kind, uint16(len(data)))
		}
		if want := []uint16{1, 3, 2, 0, 3, 4}; !slices.Equal(got, want) {
			t.Errorf("with %v behind: types and lengths %v, want %v", tail, got, want)
		}
	}
	for range Attributes(b) {
		break
	}
}

func FuzzTake(f *testing.F) {
	f.Add(datagram(message{20, 0, 1, 2, []byte("answer")}, message{unix.NLMSG_DONE, 0, 1, 2, make([]byte, 4)}), uint32(0))
	f.Add(datagram(message{unix.NLMSG_ERROR, 0, 1, 2, []byte{0xff, 0xff, 0xff, 0xff}}), uint32(0))
	f.Add(datagram(message{20, unix.NLM_F_DUMP_INTR, 1, 2, AppendAttribute(nil, 3, []byte("x"))}), uint32(7))
	f.Fuzz(func(t *testing.T, data []byte, sender uint32) {
		total := 0
		a := answers{seq: 1, port: 2, each: func(_ uint16, body []byte) bool {
			total += unix.SizeofNlMsghdr + len(body)
			for _, value := range Attributes(body) {
				total += 0 * len(value)
			}
			return false
		}}
		done, _ := a.take(data, sender)
		if total > len(data)+unix.SizeofNlMsghdr || sender != 0 && (done || total > 0) {
			t.Errorf("%d bytes of answers from %d bytes of sender %d, done %v", total, len(data), sender, done)
		}
	})
}
