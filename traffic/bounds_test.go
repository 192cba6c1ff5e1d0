package traffic_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"cleat/traffic"

	"golang.org/x/sys/unix"
)

// order opens a control connection with its own token and sends a hello.
func order(t *testing.T, address string, token int, params string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	body := `{"version":1,"kind":"hello","params":` + params + `}`
	b := append([]byte("cltt"), 1, 1, 0, 0)
	b = binary.BigEndian.AppendUint64(b, uint64(token)+1)
	b = binary.BigEndian.AppendUint64(b, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	if _, err := c.Write(append(b, body...)); err != nil {
		t.Fatal(err)
	}
	return c
}

// threads returns the number of threads of a process.
func threads(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "\nThreads:\t")
	line, _, _ := strings.Cut(after, "\n")
	n, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// needDescriptors skips the test if it can't open n descriptors.
func needDescriptors(t *testing.T, n uint64) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Cur < n {
		t.Skipf("%d descriptors are too few", limit.Cur)
	}
}

// Each connection that has not sent its preamble occupies a thread. The Go runtime aborts
// a program with 10,000 threads, so the server must bound such connections.
func TestSilentConnectionsAreBounded(t *testing.T) {
	const connections = 2000
	needDescriptors(t, connections+100)
	cmd, address := child{Address: "127.0.0.1:0", CPU: -1}.server(t, nil)
	var conns []net.Conn
	for range connections {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	// The first connection is dropped because it stays silent. Until then the server
	// accepts as many as it permits.
	if n, err := conns[0].Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a silent client reads %d bytes, %v", n, err)
	}
	if n := threads(t, cmd.Process.Pid); n > 1100 { // 1024, and those of the runtime
		t.Errorf("%d threads for %d connections", n, connections)
	}
	conns[0].Close()
	hello := order(t, address, 0, `{"work":"rr","duration_ns":1000000000,"streams":1,"message_bytes":1}`)
	expect(t, hello, "ready") // accepted once others have been dropped
}

// The memory of all tests together is bounded, and a test that would exceed the bound is
// refused.
func TestServedStreamsAreBounded(t *testing.T) {
	for name, params := range map[string]string{
		"streams": `{"work":"rr","duration_ns":1000000000,"streams":1024,"message_bytes":1}`,
		"bytes":   `{"work":"rr","duration_ns":1000000000,"streams":20,"message_bytes":16777216}`,
	} {
		t.Run(name, func(t *testing.T) {
			address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
			var first net.Conn
			for i := range 3 {
				c := order(t, address, i, params)
				expect(t, c, "ready")
				first = c
			}
			if text := expect(t, order(t, address, 3, params), "error"); !strings.Contains(text, "there is room for 3072") {
				t.Errorf("error %q", text)
			}
			first.Close()
			for i := 4; ; i++ { // the server notices the end after a short time
				c := order(t, address, i, params)
				if kind := kindOf(t, c); kind == "ready" {
					return
				}
			}
		})
	}
}

// kindOf reads one control message and returns its kind.
func kindOf(t *testing.T, c net.Conn) string {
	t.Helper()
	var n uint32
	if err := binary.Read(c, binary.BigEndian, &n); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), `"kind":"ready"`) {
		return "ready"
	}
	return "error"
}

// A client needs 4 KiB for its longest message.
func TestOrdersAreBounded(t *testing.T) {
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
	long := strings.Repeat(" ", 5000) + `{"work":"rr","duration_ns":1000000000,"streams":1,"message_bytes":1}`
	if text := expect(t, order(t, address, 0, long), "error"); !strings.Contains(text, "control message of") {
		t.Errorf("error %q", text)
	}
}

// A probe ends with its client even if the probe's stream never came. Otherwise the
// server, which waits for its tests, would never end.
func TestProbeWithoutStreamEnds(t *testing.T) {
	done := make(chan traffic.Served, 1)
	address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0", Done: func(s traffic.Served) { done <- s }})
	c := order(t, address, 0, `{"work":"probe","duration_ns":1000000000,"streams":1,"message_bytes":1}`)
	expect(t, c, "ready")
	c.Close()
	if s := <-done; s.Work != traffic.Probe {
		t.Errorf("served %+v", s)
	}
}

// The source of a datagram can be forged, so a reversed test sends only to its client.
func TestReversedFlowOfAnotherAddressIsRefused(t *testing.T) {
	for _, reverse := range []bool{true, false} {
		address := serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0"})
		c := order(t, address, 0, fmt.Sprintf(`{"work":"udp","duration_ns":1000000000,"streams":1,"message_bytes":100,"reverse":%t}`, reverse))
		expect(t, c, "ready")
		server, err := net.ResolveUDPAddr("udp", address)
		if err != nil {
			t.Fatal(err)
		}
		u, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)}, server)
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		hello := append([]byte("cl\x01\x01"), make([]byte, 28)...)
		binary.BigEndian.PutUint64(hello[8:], 1)
		if _, err := u.Write(hello); err != nil {
			t.Fatal(err)
		}
		if reverse {
			if text := expect(t, c, "error"); !strings.Contains(text, "127.0.0.2") {
				t.Errorf("error %q", text)
			}
			continue
		}
		u.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := u.Read(make([]byte, 100)); err != nil {
			t.Errorf("a flow that sends is not greeted: %v", err)
		}
	}
}
