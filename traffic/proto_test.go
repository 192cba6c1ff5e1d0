package traffic

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestPreamble(t *testing.T) {
	good := preamble{channel: channelStream, index: 7, token: token{1, 2, 3}}
	change := func(at int, to byte) []byte {
		b := good.append(nil)
		b[at] = to
		return b
	}
	tests := []struct {
		name string
		in   []byte
		want error
	}{
		{"good", good.append(nil), nil},
		{"empty", nil, ErrNotTraffic},
		{"one byte short", good.append(nil)[:preambleLen-1], ErrNotTraffic},
		{"HTTP", []byte("GET / HTTP/1.1\r\nHost: example\r\n"), ErrNotTraffic},
		{"wrong magic", change(0, 'x'), ErrNotTraffic},
		{"next version", change(4, protocolVersion+1), ErrVersion},
		{"version 0", change(4, 0), ErrVersion},
		{"channel 0", change(5, 0), ErrNotTraffic},
		{"unknown channel", change(5, byte(channelHello)+1), ErrNotTraffic},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parsePreamble(tt.in)
			if !errors.Is(err, tt.want) {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
			if tt.want == nil && got != good {
				t.Errorf("got %+v, want %+v", got, good)
			}
		})
	}
}

func TestMessageRoundTrip(t *testing.T) {
	want := message{Kind: kindHello, Round: 3, Grace: time.Second, Params: &params{
		Work: UDP, Duration: time.Second, Streams: 2, MessageBytes: 1400, Rate: 1e9, GSO: true,
	}}
	var b bytes.Buffer
	if err := writeMessage(&b, want); err != nil {
		t.Fatal(err)
	}
	got, err := readMessage(&b, maxFrame)
	if err != nil {
		t.Fatal(err)
	}
	want.Version = protocolVersion
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := readMessage(&b, maxFrame); err != io.EOF {
		t.Errorf("after the last message: %v, want io.EOF", err)
	}
}

func TestReadMessageRefuses(t *testing.T) {
	frame := func(body string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	}
	tests := []struct {
		name string
		in   []byte
		want error
	}{
		{"truncated length", []byte{0, 0}, io.ErrUnexpectedEOF},
		{"truncated body", frame(`{"version":1}`)[:8], io.ErrUnexpectedEOF},
		{"a length of 4 GiB", []byte{255, 255, 255, 255}, ErrNotTraffic},
		{"one byte too long", binary.BigEndian.AppendUint32(nil, maxFrame+1), ErrNotTraffic},
		{"no JSON", frame("hello"), ErrNotTraffic},
		{"another type", frame(`{"version":"1"}`), ErrNotTraffic},
		{"empty", frame(""), ErrNotTraffic},
		{"no version", frame(`{"kind":"hello"}`), ErrVersion},
		{"next version", frame(`{"version":2,"kind":"hello"}`), ErrVersion},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := readMessage(bytes.NewReader(tt.in), maxFrame); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

// No message of a client makes the server allocate or send without bound.
func TestParamsFromTheNetwork(t *testing.T) {
	good := params{Work: TCP, Duration: time.Second, Streams: 1, MessageBytes: 1}
	tests := []struct {
		name   string
		change func(*params)
		good   bool
	}{
		{"good", func(*params) {}, true},
		{"unknown work", func(p *params) { p.Work = "flood" }, false},
		{"a million streams", func(p *params) { p.Streams = 1e6 }, false},
		{"negative streams", func(p *params) { p.Streams = -1 }, false},
		{"1 GiB messages", func(p *params) { p.MessageBytes = 1 << 30 }, false},
		{"negative message", func(p *params) { p.MessageBytes = -1 }, false},
		{"a year", func(p *params) { p.Duration = 365 * 24 * time.Hour }, false},
		{"negative time", func(p *params) { p.Duration = -1 }, false},
		{"negative omit", func(p *params) { p.Omit = -1 }, false},
		{"negative rate", func(p *params) { p.Rate = -1 }, false},
		{"a rate that no schedule holds", func(p *params) { p.Work = UDP; p.MessageBytes = 100; p.Rate = 1e300 }, false},
		{"a datagram in a thousand years", func(p *params) { p.Work = UDP; p.MessageBytes = 100; p.Rate = 1e-9 }, false},
		{"no number for a rate", func(p *params) { p.Rate = math.NaN() }, false},
		{"no streams", func(p *params) { p.Streams = 0 }, false},
		{"no bytes", func(p *params) { p.MessageBytes = 0 }, false},
		{"no time", func(p *params) { p.Duration = 0 }, false},
		{"a long congestion control", func(p *params) { p.Congestion = strings.Repeat("c", 16) }, false},
		{"a datagram without room for its header", func(p *params) { p.Work = UDP; p.MessageBytes = datagramHeaderLen - 1 }, false},
		{"a request without room for its preamble", func(p *params) { p.Work = CRR; p.MessageBytes = preambleLen - 1 }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := good
			tt.change(&p)
			if err := p.validate(); (err == nil) != tt.good {
				t.Errorf("error %v, want good %v", err, tt.good)
			}
		})
	}
	if err := (*params)(nil).validate(); !errors.Is(err, ErrNotTraffic) {
		t.Errorf("no parameters: %v, want ErrNotTraffic", err)
	}
}

func TestDatagramHeader(t *testing.T) {
	want := datagram{kind: datagramData, index: 513, round: 65535, token: 1 << 63, seq: 1<<64 - 1, sent: -5}
	b := make([]byte, datagramHeaderLen)
	want.put(b)
	if got, ok := parseDatagram(b); !ok || got != want {
		t.Errorf("got %+v, %v; want %+v", got, ok, want)
	}
	for name, b := range map[string][]byte{
		"empty": nil, "short": b[:datagramHeaderLen-1], "DNS": bytes.Repeat([]byte{0}, 40),
		"next version": append([]byte{'c', 'l', protocolVersion + 1}, b[3:]...),
		"kind 0":       append([]byte{'c', 'l', protocolVersion, 0}, b[4:]...),
		"unknown kind": append([]byte{'c', 'l', protocolVersion, byte(datagramProbe) + 1}, b[4:]...),
	} {
		if _, ok := parseDatagram(b); ok {
			t.Errorf("%s is taken for a datagram of ours", name)
		}
	}
}

func FuzzPreamble(f *testing.F) {
	f.Add(preamble{channel: channelControl, index: 1}.append(nil))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parsePreamble(b)
		if err == nil && !bytes.Equal(p.append(nil), b[:preambleLen]) {
			t.Errorf("%x does not survive: %+v", b, p)
		}
	})
}

func FuzzMessage(f *testing.F) {
	var b bytes.Buffer
	writeMessage(&b, message{Kind: kindHello, Params: &params{Work: TCP}})
	f.Add(b.Bytes())
	f.Add([]byte{0, 0, 0, 2, '{', '}'})
	f.Add([]byte("\x00\x00\x00\x7b" + `{"version":1,"kind":"hello","params":{"work":"udp","duration_ns":1,"streams":1,"message_bytes":100,"rate":1e3,"early_ns":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := readMessage(bytes.NewReader(b), maxFrame)
		if err != nil {
			return
		}
		if m.Params.validate() == nil {
			if r := m.Params.needs(); r.streams < 1 || r.streams > MaxStreams || r.bytes < 0 || r.bytes > MaxStreams*MaxMessageBytes {
				t.Errorf("%q needs %+v", b, r)
			}
		}
		if _, err := json.Marshal(m); err != nil {
			t.Errorf("%q can't be written again: %v", b, err)
		}
	})
}

func FuzzDatagram(f *testing.F) {
	b := make([]byte, datagramHeaderLen)
	datagram{kind: datagramEcho, seq: 9}.put(b)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		d, ok := parseDatagram(b)
		if !ok {
			return
		}
		again := make([]byte, datagramHeaderLen)
		d.put(again)
		if !bytes.Equal(again, b[:datagramHeaderLen]) {
			t.Errorf("%x does not survive: %x", b[:datagramHeaderLen], again)
		}
	})
}
