package nlsock_test

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"time"

	"cleat/internal/nlsock"
	"cleat/lab"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

// open makes a socket of NETLINK_ROUTE or another protocol.
func open(t *testing.T, protocol int) int {
	t.Helper()
	lab.Need(t)
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// flood sends forged answers to a port id, with the sequence number of a request,
// until the test ends or stop is called. It returns the error of the first.
func flood(t *testing.T, protocol int, port, seq uint32) (stop func(), first error) {
	t.Helper()
	fd := open(t, protocol)
	// "It has the index 99."
	forged := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	native := binary.NativeEndian
	native.PutUint32(forged, uint32(len(forged)))
	native.PutUint16(forged[4:], unix.RTM_NEWLINK)
	native.PutUint32(forged[8:], seq)
	native.PutUint32(forged[12:], port)
	native.PutUint32(forged[unix.SizeofNlMsghdr+4:], 99)
	send := func() error {
		return unix.Sendto(fd, forged, unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port})
	}
	first = send()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = send()
		}
	}()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return stop, first
}

// loopback asks for the index of lo.
func loopback(s *nlsock.Socket) (uint32, error) {
	kind, body, err := s.Ask(nlsock.Request{Kind: unix.RTM_GETLINK, Body: nlsock.AppendAttribute(make([]byte, unix.SizeofIfInfomsg), unix.IFLA_IFNAME, []byte("lo\x00"))})
	if err != nil {
		return 0, err
	}
	if kind != unix.RTM_NEWLINK || len(body) < unix.SizeofIfInfomsg {
		return 0, unix.EBADMSG
	}
	return binary.NativeEndian.Uint32(body[4:]), nil
}

// Nobody but the kernel reaches a socket, and what is asked is answered meanwhile.
func TestForgedAnswersDontArrive(t *testing.T) {
	s, err := nlsock.New(open(t, unix.NETLINK_ROUTE))
	if err != nil {
		t.Fatal(err)
	}
	stop, first := flood(t, unix.NETLINK_ROUTE, s.Port(), 1)
	defer stop()
	if !errors.Is(first, unix.ECONNREFUSED) {
		t.Errorf("send to it: %v, want %v", first, unix.ECONNREFUSED)
	}
	for range 100 {
		if index, err := loopback(s); err != nil || index != 1 {
			t.Fatalf("lo has the index %d, %v", index, err)
		}
	}
}

// Even where forged answers arrive they are not believed, and a flood ends in an error.
func TestForgedAnswersAreNotBelieved(t *testing.T) {
	s, err := nlsock.Unconnected(open(t, unix.NETLINK_ROUTE))
	if err != nil {
		t.Fatal(err)
	}
	stop, first := flood(t, unix.NETLINK_ROUTE, s.Port(), 1)
	if first != nil {
		t.Fatal(first)
	}
	for range 20 {
		if index, err := loopback(s); err == nil && index != 1 {
			t.Fatalf("lo has the index %d", index)
		}
	}
	stop()
	// The receive buffer may still be full, and lose the first answers.
	for begin := time.Now(); time.Since(begin) < 20*time.Second; {
		if _, err = loopback(s); err == nil {
			return
		}
	}
	t.Errorf("after the flood: %v", err)
}

func TestDump(t *testing.T) {
	s, err := nlsock.New(open(t, unix.NETLINK_ROUTE))
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	count := func(kind uint16, body []byte) {
		if kind == unix.RTM_NEWLINK && len(body) >= unix.SizeofIfInfomsg {
			links++
		}
	}
	for range 2 {
		if err := s.Dump(nlsock.Request{Kind: unix.RTM_GETLINK, Body: make([]byte, unix.SizeofIfInfomsg)}, count); err != nil {
			t.Fatal(err)
		}
	}
	if links < 2 || links%2 != 0 {
		t.Errorf("two dumps had %d links", links)
	}
	// An exchange that ended early does not disturb the next one.
	if err := s.Begin(nlsock.Request{Kind: unix.RTM_GETLINK, Body: make([]byte, unix.SizeofIfInfomsg)}); err != nil {
		t.Fatal(err)
	}
	if index, err := loopback(s); err != nil || index != 1 {
		t.Errorf("after half a dump lo has the index %d, %v", index, err)
	}
	if _, _, err := s.Ask(nlsock.Request{Kind: unix.RTM_GETLINK, Body: nlsock.AppendAttribute(make([]byte, unix.SizeofIfInfomsg), unix.IFLA_IFNAME, []byte("none\x00"))}); !errors.Is(err, unix.ENODEV) {
		t.Errorf("ask for a link that is not there: %v, want %v", err, unix.ENODEV)
	}
}

// TestRulesGeneration changes a table between looks.
func TestRulesGeneration(t *testing.T) {
	s, err := nlsock.New(open(t, unix.NETLINK_NETFILTER))
	if err != nil {
		t.Fatal(err)
	}
	generation := func() uint32 {
		n, err := s.RulesGeneration()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := generation()
	if now := generation(); now != before {
		t.Errorf("generation %d became %d by itself", before, now)
	}
	c := &nftables.Conn{}
	for i, change := range []func(*nftables.Table){func(table *nftables.Table) { c.AddTable(table) }, c.DelTable} {
		change(&nftables.Table{Name: "nlsock-test", Family: nftables.TableFamilyIPv4})
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
		if now := generation(); now != before+uint32(i)+1 {
			t.Errorf("after change %d the generation is %d, and was %d before all", i+1, now, before)
		}
	}
}

func TestNews(t *testing.T) {
	fd := open(t, unix.NETLINK_ROUTE)
	news, err := nlsock.Join(fd, unix.RTNLGRP_IPV4_RULE)
	if err != nil {
		t.Fatal(err)
	}
	if news.Any() {
		t.Error("news before anything happened")
	}
	change := func(kind, flags uint16) {
		s, err := nlsock.New(open(t, unix.NETLINK_ROUTE))
		if err != nil {
			t.Fatal(err)
		}
		rule := make([]byte, 12) // struct fib_rule_hdr
		rule[0], rule[4], rule[7] = unix.AF_INET, unix.RT_TABLE_MAIN, 1
		if _, _, err := s.Ask(nlsock.Request{Kind: kind, Flags: flags | unix.NLM_F_ACK, Body: rule}); err != nil {
			t.Fatal(err)
		}
	}
	change(unix.RTM_NEWRULE, unix.NLM_F_CREATE)
	t.Cleanup(func() { change(unix.RTM_DELRULE, 0) })
	if !news.Any() || news.Any() {
		t.Error("a rule that came is no news, or news for ever")
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	if _, first := flood(t, unix.NETLINK_ROUTE, own.(*unix.SockaddrNetlink).Pid, 1); !errors.Is(first, unix.ECONNREFUSED) {
		t.Errorf("send to it: %v, want %v", first, unix.ECONNREFUSED)
	}
}
