package labtest_test

import (
	"io"
	"net"
	"os"
	"testing"

	"cleat/lab"
	"cleat/lab/labtest"
	"cleat/netns"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

func TestOutside(t *testing.T) {
	for range 2 { // as from several tests
		labtest.Outside(t, "192.0.2.1", "2001:db8::1")
	}
	for _, address := range []string{"192.0.2.1:0", "[2001:db8::1]:0"} {
		at := labtest.Serve(t, nil, address, labtest.Reply("hello"))
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if b, err := io.ReadAll(c); string(b) != "hello" || err != nil {
			t.Errorf("%s sent %q, %v", at, b, err)
		}
	}
}

func TestServeInANamespace(t *testing.T) {
	labtest.Outside(t)
	ns, err := netns.New("elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	at := labtest.Serve(t, ns, "0.0.0.0:18099", labtest.Reply("hello"))
	if c, err := net.Dial("tcp", "127.0.0.1:18099"); err == nil {
		c.Close()
		t.Errorf("%s can be reached from another namespace", at)
	}
}
