package dns

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func TestConversationOverUDPEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s fakes
		s.set("192.0.2.1", late(time.Second, says(t)))
		f := newForwarder(t, Config{}, &s)
		c := f.Packets()
		buf := make([]byte, 600)
		for range 3 { // queries keep it alive
			c.Write(ask(t, 7, "example.com", dnsmessage.TypeA))
			if _, err := c.Read(buf); err != nil {
				t.Fatal(err)
			}
			time.Sleep(lingers - time.Millisecond)
		}
		start := time.Now()
		if _, err := c.Read(buf); err != io.EOF || time.Since(start) > lingers {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if _, err := c.Write(ask(t, 7, "example.com", dnsmessage.TypeA)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write: %v", err)
		}
		if len(f.udp) != 0 {
			t.Error("the conversation is still known")
		}
		idle := f.Packets()
		if _, err := idle.Read(buf); err != io.EOF {
			t.Errorf("one that never began: %v", err)
		}
	})
}

func TestCloseAndRunsEndWakeReaders(t *testing.T) {
	for _, c := range []struct {
		name string
		open func(*Forwarder) net.Conn
		end  bool // end by Run, or else by Close
		want []error
	}{
		{"UDP, close", (*Forwarder).Packets, false, []error{net.ErrClosed}},
		{"UDP, end", (*Forwarder).Packets, true, []error{io.EOF}},
		{"TCP, close", (*Forwarder).Stream, false, []error{io.ErrClosedPipe}},
		{"TCP, end", (*Forwarder).Stream, true, []error{io.EOF}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s fakes
				s.set("192.0.2.1", silent)
				f, err := New(Config{Servers: two(), Dial: s.dial})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ran := make(chan error, 1)
				go func() { ran <- f.Run(ctx) }()
				conn := c.open(f)
				q := ask(t, 7, "example.com", dnsmessage.TypeA)
				if strings.HasPrefix(c.name, "TCP") {
					q = append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)
				}
				if _, err := conn.Write(q); err != nil {
					t.Fatal(err)
				}
				read := make(chan error, 1)
				go func() {
					_, err := conn.Read(make([]byte, 600))
					read <- err
				}()
				synctest.Wait()
				if c.end {
					cancel()
				} else {
					conn.Close()
				}
				if err := <-read; !slices.Contains(c.want, err) {
					t.Errorf("read: %v, want %v", err, c.want)
				}
				cancel()
				if err := <-ran; !errors.Is(err, context.Canceled) {
					t.Errorf("Run: %v", err)
				}
				conn.Close()
				if f.Packets() != nil || f.Stream() != nil {
					t.Error("a conversation after the end")
				}
			})
		})
	}
}

func TestFloods(t *testing.T) {
	t.Run("questions", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var s fakes
			s.set("192.0.2.1", silent)
			f := newForwarder(t, Config{Queries: 4}, &s)
			c := f.Packets()
			defer c.Close()
			for i := range 1000 {
				if _, err := c.Write(ask(t, uint16(i), fmt.Sprintf("h%d.example", i), dnsmessage.TypeA)); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			if n := s.count("192.0.2.1"); n != 4 {
				t.Errorf("%d under way, want 4", n)
			}
			if st := f.Stats(); st.Dropped != 1000-4*waitingFactor {
				t.Errorf("%d dropped", st.Dropped)
			}
		})
	})
	t.Run("tries", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var s fakes
			s.set("192.0.2.1", silent)
			s.set("192.0.2.2", silent)
			f := newForwarder(t, Config{Queries: 4, Servers: two()}, &s)
			c := f.Packets()
			defer c.Close()
			for i := range 4 {
				c.Write(ask(t, uint16(i), fmt.Sprintf("h%d.example", i), dnsmessage.TypeA))
			}
			time.Sleep(5 * time.Second)
			if n := s.count("192.0.2.1") + s.count("192.0.2.2"); n != 4+2 {
				t.Errorf("%d sockets, want 6", n)
			}
		})
	})
	t.Run("conversations", func(t *testing.T) {
		f := newForwarder(t, Config{}, &fakes{})
		var open []net.Conn
		for range maxConversations {
			open = append(open, f.Packets())
		}
		for range maxStreams {
			open = append(open, f.Stream())
		}
		if f.Packets() != nil || f.Stream() != nil {
			t.Error("one too many")
		}
		for _, c := range open {
			c.Close()
		}
		if c := f.Packets(); c == nil {
			t.Error("closed conversations count")
		}
	})
}

func TestWriteTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s fakes
		s.set("192.0.2.1", says(t, "example.com A 192.0.2.1"))
		f := newForwarder(t, Config{}, &s)
		c := f.Packets()
		for i := range 3 {
			c.Write(ask(t, uint16(i), "example.com", dnsmessage.TypeA))
		}
		var got []uint16
		n, err := c.(io.WriterTo).WriteTo(each(func(b []byte) error {
			got = append(got, unpack(t, b).ID)
			return nil
		}))
		slices.Sort(got)
		if err != nil || n != 3*45 || !slices.Equal(got, []uint16{0, 1, 2}) {
			t.Errorf("%d bytes, %v, ids %v", n, err, got)
		}
		c = f.Packets()
		c.Write(ask(t, 7, "example.com", dnsmessage.TypeA))
		if _, err := c.(io.WriterTo).WriteTo(each(func([]byte) error { return io.ErrShortWrite })); err != io.ErrShortWrite {
			t.Errorf("error is %v", err)
		}
		c.Close()
		if _, err := c.(io.WriterTo).WriteTo(io.Discard); !errors.Is(err, net.ErrClosed) {
			t.Errorf("error is %v", err)
		}
	})
}

// each is an io.Writer implemented by a function.
type each func([]byte) error

func (e each) Write(b []byte) (int, error) { return len(b), e(b) }

func TestStream(t *testing.T) {
	slow, fast := ask(t, 1, "slow.example", dnsmessage.TypeA), ask(t, 2, "fast.example", dnsmessage.TypeA)
	server := func(_ string, q []byte) []byte {
		if bytes.Contains(q, []byte("slow")) {
			time.Sleep(time.Second / 2)
		}
		return answerTo(t, q, dnsmessage.RCodeSuccess)
	}
	for _, c := range []struct {
		name  string
		send  []byte
		half  bool     // close the sending direction afterwards
		want  []uint16 // ids of the answers
		after time.Duration
	}{
		{"one", framed(fast), false, []uint16{2}, streamIdle},
		{"pipelined: the quick one first", slices.Concat(framed(slow), framed(fast)), false, []uint16{2, 1}, streamIdle},
		{"half closed", framed(slow), true, []uint16{1}, time.Second / 2},
		{"half closed at once", nil, true, nil, 0},
		{"nothing", nil, false, nil, streamIdle},
		{"an answer", framed(answerTo(t, fast, dnsmessage.RCodeSuccess)), false, nil, 0},
		{"a question without end", append([]byte{0x10, 0}, fast...), false, nil, streamIdle},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s fakes
				s.set("192.0.2.1", server)
				f := newForwarder(t, Config{}, &s)
				conn := f.Stream()
				defer conn.Close()
				start := time.Now()
				go func() {
					conn.Write(c.send)
					if c.half {
						conn.(interface{ CloseWrite() error }).CloseWrite()
					}
				}()
				var got []uint16
				for {
					m, err := ReadMessage(conn, maxMessage)
					if err != nil {
						if err != io.EOF {
							t.Error(err)
						}
						break
					}
					got = append(got, unpack(t, m).ID)
				}
				if took := time.Since(start); !slices.Equal(got, c.want) || took < c.after || took > c.after+time.Second {
					t.Errorf("answers %v after %v, want %v after %v", got, took, c.want, c.after)
				}
				synctest.Wait()
				if len(f.tcp) != 0 {
					t.Error("the conversation is still known")
				}
			})
		})
	}
	t.Run("a very long question", func(t *testing.T) {
		f := newForwarder(t, Config{}, &fakes{})
		conn := f.Stream()
		defer conn.Close()
		go conn.Write([]byte{0xff, 0xff, 1, 2, 3})
		if _, err := conn.Read(make([]byte, 9)); err != io.EOF {
			t.Errorf("read: %v", err)
		}
	})
}
