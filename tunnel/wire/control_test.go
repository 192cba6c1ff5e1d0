package wire

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"cleat/packet"
	"cleat/tunnel/sched"
)

var (
	aMark     = Mark{NextSeq: 0x01020304, Idle: true, LivePaths: 0x05060708090a0b0c}
	aReport   = Report{Path: 9, Report: sched.Report{CheckedUntil: 1, HighestSeq: 2, Packets: 3, Bytes: 4, Arrived: 5, MinDelay: -7}}
	aReceiver = Receiver{Hold: 200 * time.Millisecond, ReportEvery: 10 * time.Millisecond}
	aMissing  = Missing{Path: 63, First: 0xfffffffe, Count: 0x0102}
)

// messages returns one message of each type.
func messages() []byte {
	b := AppendMark(nil, aMark)
	b = AppendReport(b, &aReport)
	b = AppendMissing(b, aMissing)
	b = AppendReceiver(b, aReceiver)
	b = Append(b, TypeEcho, []byte("8 bytes."))
	b = AppendPad(b, 10)
	b = Append(b, 200, nil) // of an unknown type
	return Append(b, TypeCapacity, []byte{5, 220})
}

func TestControl(t *testing.T) {
	var got []Type
	for b := messages(); len(b) > 0; {
		kind, value, rest, err := Next(b)
		if err != nil {
			t.Fatal(err)
		}
		if len(value)+len(rest)+messageBytes != len(b) || cap(value) != len(value) {
			t.Errorf("type %d: %d bytes (capacity %d) and %d more of %d", kind, len(value), cap(value), len(rest), len(b))
		}
		got, b = append(got, kind), rest
		switch kind {
		case TypeMark:
			var m Mark
			if err := ParseMark(value, &m); err != nil || m != aMark {
				t.Errorf("mark is %+v, %v; want %+v", m, err, aMark)
			}
			checkTruncated(t, value, func(v []byte) error { return ParseMark(v, &m) })
		case TypeReport:
			var r Report
			if err := ParseReport(value, &r); err != nil || r != aReport {
				t.Errorf("report is %+v, %v; want %+v", r, err, aReport)
			}
			checkTruncated(t, value, func(v []byte) error { return ParseReport(v, &r) })
		case TypeMissing:
			var m Missing
			if err := ParseMissing(value, &m); err != nil || m != aMissing {
				t.Errorf("missing is %+v, %v; want %+v", m, err, aMissing)
			}
			checkTruncated(t, value, func(v []byte) error { return ParseMissing(v, &m) })
		case TypeReceiver:
			var r Receiver
			if err := ParseReceiver(value, &r); err != nil || r != aReceiver {
				t.Errorf("receiver is %+v, %v; want %+v", r, err, aReceiver)
			}
			checkTruncated(t, value, func(v []byte) error { return ParseReceiver(v, &r) })
		case TypeEcho:
			if string(value) != "8 bytes." {
				t.Errorf("echo is %q", value)
			}
		}
	}
	want := []Type{TypeMark, TypeReport, TypeMissing, TypeReceiver, TypeEcho, TypePad, 200, TypeCapacity}
	if !bytes.Equal(types(got), types(want)) {
		t.Errorf("types are %v, want %v", got, want)
	}
}

func types(l []Type) []byte {
	var b []byte
	for _, t := range l {
		b = append(b, byte(t))
	}
	return b
}

// checkTruncated parses a truncated value of each length, and one with an extra byte,
// which a newer end may have added.
func checkTruncated(t *testing.T, value []byte, parse func([]byte) error) {
	t.Helper()
	for cut := range value {
		if err := parse(value[:cut]); !errors.Is(err, packet.ErrShort) {
			t.Errorf("%d bytes of %d: %v, want ErrShort", cut, len(value), err)
		}
	}
	if err := parse(append(bytes.Clone(value), 1)); err != nil {
		t.Errorf("one extra byte: %v", err)
	}
}

// TestControlCut truncates a list of messages at every byte.
func TestControlCut(t *testing.T) {
	whole := messages()
	ends := map[int]bool{0: true}
	for b := whole; len(b) > 0; {
		_, _, b, _ = Next(b)
		ends[len(whole)-len(b)] = true
	}
	for cut := range len(whole) + 1 {
		var err error
		for b := whole[:cut]; len(b) > 0 && err == nil; {
			_, _, b, err = Next(b)
		}
		if ends[cut] && err != nil || !ends[cut] && !errors.Is(err, packet.ErrShort) {
			t.Errorf("%d of %d bytes: %v; at the end of a message: %v", cut, len(whole), err, ends[cut])
		}
	}
	if kind, value, rest, err := Next(nil); kind != TypePad || value != nil || rest != nil || err != nil {
		t.Errorf("an empty list is %v, % x, % x, %v", kind, value, rest, err)
	}
}

func TestPad(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 4, 100, 1400} {
		b := AppendPad([]byte{0xee}, n)[1:]
		kind, value, rest, err := Next(b)
		if len(b) != max(n, messageBytes) || kind != TypePad || len(value) != len(b)-messageBytes || len(rest) != 0 || err != nil {
			t.Errorf("padding of %d: %d bytes, type %v, %d of value, %d after it, %v", n, len(b), kind, len(value), len(rest), err)
		}
	}
}

// FuzzControl parses arbitrary bytes as control messages, and checks that they can be
// written again.
func FuzzControl(f *testing.F) {
	whole := messages()
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add([]byte{0, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var again []byte
		for rest := b; len(rest) > 0; {
			kind, value, next, err := Next(rest)
			if err != nil {
				if again = append(again, rest...); !errors.Is(err, packet.ErrShort) {
					t.Error(err)
				}
				break
			}
			if len(next) >= len(rest) {
				t.Fatal("no progress")
			}
			again, rest = Append(again, kind, value), next
			roundTrip(t, kind, value)
		}
		if !bytes.Equal(again, b) {
			t.Errorf("% x is written again as % x", b, again)
		}
	})
}

// roundTrip writes a parsed value and parses it again.
func roundTrip(t *testing.T, kind Type, value []byte) {
	t.Helper()
	var mark, mark2 Mark
	var report, report2 Report
	var missing, missing2 Missing
	var receiver, receiver2 Receiver
	switch {
	case kind == TypeMark && ParseMark(value, &mark) == nil:
		if err := ParseMark(AppendMark(nil, mark)[messageBytes:], &mark2); err != nil || mark != mark2 {
			t.Errorf("%+v is parsed as %+v, %v", mark, mark2, err)
		}
	case kind == TypeReport && ParseReport(value, &report) == nil:
		if err := ParseReport(AppendReport(nil, &report)[messageBytes:], &report2); err != nil || report != report2 {
			t.Errorf("%+v is parsed as %+v, %v", report, report2, err)
		}
	case kind == TypeMissing && ParseMissing(value, &missing) == nil:
		if again := AppendMissing(nil, missing)[messageBytes:]; ParseMissing(again, &missing2) != nil || missing != missing2 {
			t.Errorf("%+v is parsed as %+v", missing, missing2)
		}
	case kind == TypeReceiver && ParseReceiver(value, &receiver) == nil:
		if again := AppendReceiver(nil, receiver)[messageBytes:]; ParseReceiver(again, &receiver2) != nil || receiver != receiver2 {
			t.Errorf("%+v is parsed as %+v", receiver, receiver2)
		}
	}
}

func TestNothingIsAllocated(t *testing.T) {
	whole, header := messages(), make([]byte, HeaderBytes)
	buf := make([]byte, 0, 2*len(whole))
	if n := testing.AllocsPerRun(100, func() {
		var s Shim
		s.Put(header)
		_ = parse(&s, header)
		buf = AppendMissing(AppendReport(AppendMark(buf[:0], aMark), &aReport), aMissing)
		for b := buf; len(b) > 0; {
			_, value, rest, err := Next(b)
			var r Report
			if b = rest; ParseReport(value, &r) != nil && err != nil {
				return
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations per run", n)
	}
}

// TestReportMarked checks that ends of different versions understand each other's reports: those
// without marks are as long as they were before marks were counted, and in those with marks the
// count comes last.
func TestReportMarked(t *testing.T) {
	parse := func(b []byte) (r Report) {
		t.Helper()
		kind, value, rest, err := Next(b)
		if err == nil {
			err = ParseReport(value, &r)
		}
		if kind != TypeReport || len(rest) > 0 || err != nil {
			t.Errorf("% x is of type %d, with %d bytes behind it, %v", b, kind, len(rest), err)
		}
		return r
	}
	before := AppendReport(nil, &aReport)
	if len(before) != messageBytes+reportBytes {
		t.Errorf("a report without marks has %d bytes, want %d", len(before), messageBytes+reportBytes)
	}
	if r := parse(before); r != aReport {
		t.Errorf("report is %+v, want %+v", r, aReport)
	}
	marked := aReport
	marked.Marked = 0xfffffffe
	b := AppendReport(nil, &marked)
	if !bytes.HasPrefix(b[messageBytes:], before[messageBytes:]) {
		t.Errorf("% x does not begin with % x", b, before)
	}
	if r := parse(b); r != marked {
		t.Errorf("report is %+v, want %+v", r, marked)
	}
	for cut := 1; cut <= markedBytes; cut++ { // an older end sends less
		if r := parse(Append(nil, TypeReport, b[messageBytes:len(b)-cut])); r != aReport {
			t.Errorf("report without %d bytes is %+v, want %+v", cut, r, aReport)
		}
	}
	if r := parse(Append(nil, TypeReport, append(bytes.Clone(b[messageBytes:]), 1))); r != marked { // a newer end sends more
		t.Errorf("longer report is %+v, want %+v", r, marked)
	}
}
