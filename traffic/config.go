package traffic

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// DefaultPort is the port of `cleat traffic serve`, and of addresses without a port. One
// port carries control, TCP and UDP, because published ports and user-mode networks
// forward only configured ports.
const DefaultPort = 5210

// Work is a kind of traffic.
type Work string

// The kinds of work.
const (
	TCP   Work = "tcp"   // streams, as fast as possible
	UDP   Work = "udp"   // datagrams at an offered rate
	RR    Work = "rr"    // request/response over TCP
	UDPRR Work = "udprr" // request/response over UDP
	CRR   Work = "crr"   // connect, request, response, close
	Probe Work = "probe" // which packet sizes arrive
)

// Works returns every kind of work, in the order of the manual.
func Works() []Work { return []Work{TCP, UDP, RR, UDPRR, CRR, Probe} }

// Engine is a program that generates and counts the traffic.
type Engine string

// The engines. Iperf3 and Iperf need the Debian packages of those names.
const (
	EngineCleat  Engine = "cleat"
	EngineIperf3 Engine = "iperf3"
	EngineIperf  Engine = "iperf"
)

// Engines returns every engine, the built-in one first.
func Engines() []Engine { return []Engine{EngineCleat, EngineIperf3, EngineIperf} }

// Config describes a measurement. Only Work and Address are required; the zero value of
// every other field means the default given beside it.
type Config struct {
	Work    Work
	Engine  Engine // "" means EngineCleat
	Address string // host:port, host or [v6]:port of a server; the default port is DefaultPort

	// Control is "unix:FILE" of a server's control socket. If empty, control uses the
	// same address as the data. A separate control channel can't be starved by the
	// traffic.
	Control string

	Duration time.Duration // of counting; 0 means 1 s
	Omit     time.Duration // ramp before counting

	// Gate, if not nil, is called once when everything is connected, and returns when to
	// start together with other clients. An error ends the run.
	Gate func(context.Context) (time.Time, error)

	Streams      int    // sockets; 0 means 1
	MessageBytes int    // bytes per write, datagram, request and response; 0: see DefaultMessage
	Congestion   string // TCP congestion control of both ends; "" means the kernel's default
	MSS          int    // TCP_MAXSEG of the client's sockets in bytes; 0 means the kernel's choice
	BufferBytes  int    // SO_SNDBUF and SO_RCVBUF; 0 means autotuning for TCP and UDPBufferBytes for UDP
	MPTCP        bool   // IPPROTO_MPTCP sockets for TCP, RR and CRR
	Reverse      bool   // TCP and UDP: the server sends

	// Early makes TCP and UDP report separately what arrived within this time of the
	// first byte, and the longest pause; 0 reports neither.
	Early time.Duration

	// BitsPerSecond is the UDP payload offered by all streams together; 0 means as fast
	// as possible.
	BitsPerSecond float64
	GSO           bool    // UDP_SEGMENT at the sender, UDP_GRO at the receiver
	NoChecksum    bool    // SO_NO_CHECK: UDP over IPv4 without checksum
	Search        bool    // UDP: search for the highest rate within LossBound before the run, which is at that rate
	LossBound     float64 // fraction; 0 means DefaultLossBound

	// TransactionsPerSecond makes RR, UDPRR and CRR an open loop on a schedule. With 0
	// they are a closed loop: each request follows the last response.
	TransactionsPerSecond float64

	// Patience is how long a response of UDPRR may take before it counts as lost; 0 means
	// 250 ms or four round trips of the idle path, whichever is longer.
	Patience time.Duration

	// Progress, if not nil, is called about once a second with a line of text, from one
	// goroutine.
	Progress func(string)
}

// ServeConfig configures Serve. The zero value serves on every address at DefaultPort
// until the context ends.
type ServeConfig struct {
	Listen  string // host:port; "" means every address at DefaultPort
	Control string // "unix:FILE" of an additional control socket; "" means none
	Engine  Engine // "" means EngineCleat
	Once    bool   // return after the first test

	// Ready is called once when clients can connect, with the listening address; Done is
	// called after each test. Both may be nil. Done must be safe for concurrent use.
	Ready func(address string)
	Done  func(Served)
}

// Served describes a test that has ended.
type Served struct {
	Work   Work   `json:"work"`
	Client string `json:"client"`          // peer of the control connection: an address or "unix"
	Error  string `json:"error,omitempty"` // why the test was aborted
}

// Defaults and limits.
const (
	DefaultDuration  = time.Second
	DefaultLossBound = 0.005    // RFC 2544 allows none; half a percent is hardly noticeable
	UDPBufferBytes   = 4 << 20  // 4 ms at 8 Gbit/s; net.core.rmem_max may allow less
	MaxStreams       = 1024     // sockets of one test; more would be a typing error
	MaxMessageBytes  = 16 << 20 // one write
	MaxDatagramBytes = 65507    // UDP over IPv4: 65535 less headers of 20 and 8 bytes
	maxDuration      = 24 * time.Hour
	maxBitsPerSecond = 1e15 // faster than any link, while times of a schedule still fit 64 bits
	maxCongestion    = 15   // TCP_CA_NAME_MAX (include/net/tcp.h) less the terminating zero
)

// DefaultMessage returns the default message size in bytes: 128 KiB writes for streams, a
// datagram that fills an Ethernet frame over IPv6, and 64 bytes for requests.
func DefaultMessage(w Work) int {
	switch w {
	case TCP:
		return 128 << 10
	case UDP:
		return 1448
	default:
		return 64
	}
}

// ConfigError is an invalid parameter.
type ConfigError struct {
	Field string // the option's name on the command line
	Value string
	Want  string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("option %s: %q: want %s", e.Field, e.Value, e.Want)
}

func (c Config) withDefaults() Config {
	c.Engine = cmp.Or(c.Engine, EngineCleat)
	c.Duration = cmp.Or(c.Duration, DefaultDuration)
	c.Streams = cmp.Or(c.Streams, 1)
	c.MessageBytes = cmp.Or(c.MessageBytes, DefaultMessage(c.Work))
	c.LossBound = cmp.Or(c.LossBound, DefaultLossBound)
	return c
}

// Validate returns a *ConfigError for the first invalid parameter.
func (c Config) Validate() error {
	c = c.withDefaults()
	bad := func(field string, value any, want string) error {
		return &ConfigError{Field: field, Value: fmt.Sprint(value), Want: want}
	}
	isUDP := c.Work == UDP || c.Work == UDPRR
	switch {
	case !slices.Contains(Works(), c.Work):
		return bad("work", c.Work, oneOf(Works()))
	case !slices.Contains(Engines(), c.Engine):
		return bad("engine", c.Engine, oneOf(Engines()))
	case c.Engine != EngineCleat && c.Work != TCP && c.Work != UDP:
		return bad("engine", c.Engine, fmt.Sprintf("cleat: %s supports only tcp and udp", c.Engine))
	case c.Duration < 0 || c.Duration > maxDuration:
		return bad("duration", c.Duration, "more than 0s and at most 24h")
	case c.Omit < 0 || c.Omit > maxDuration:
		return bad("omit", c.Omit, "0s to 24h")
	case c.Streams < 0 || c.Streams > MaxStreams:
		return bad("streams", c.Streams, fmt.Sprintf("1 to %d", MaxStreams))
	case c.MessageBytes < minMessage(c.Work) || c.MessageBytes > maxMessage(c.Work):
		return bad("message", c.MessageBytes, fmt.Sprintf("%d to %d bytes for %s", minMessage(c.Work), maxMessage(c.Work), c.Work))
	case c.MSS < 0 || c.MSS > 65535:
		return bad("mss", c.MSS, "0 to 65535 bytes")
	case c.BufferBytes < 0 || c.BufferBytes > 1<<30:
		return bad("buffer", c.BufferBytes, "0 to 1 GiB")
	case c.BitsPerSecond != 0 && !(c.BitsPerSecond >= 1 && c.BitsPerSecond <= maxBitsPerSecond): // also excludes NaN
		return bad("rate", c.BitsPerSecond, "0 (as fast as possible), or 1 bit/s to 1 Pbit/s")
	case !(c.TransactionsPerSecond >= 0 && c.TransactionsPerSecond <= 1e7):
		return bad("rate", c.TransactionsPerSecond, "0 (as fast as possible) or more, and at most 10 million transactions a second")
	case len(c.Congestion) > maxCongestion:
		return bad("congestion", c.Congestion, fmt.Sprintf("a name of at most %d bytes", maxCongestion))
	case c.LossBound < 0 || c.LossBound >= 1:
		return bad("loss-bound", c.LossBound, "a fraction from 0 up to 1")
	case c.MPTCP && (isUDP || c.Work == Probe):
		return bad("mptcp", c.MPTCP, "a work over TCP")
	case c.GSO && c.NoChecksum:
		return bad("gso", c.GSO, "checksums on: UDP_SEGMENT refuses sockets without them")
	case c.Early < 0 || c.Early > maxDuration:
		return bad("early", c.Early, "0s to 24h")
	case c.Early > 0 && c.Work != TCP && c.Work != UDP:
		return bad("early", c.Early, "work tcp or udp")
	case c.Patience < 0 || c.Patience > 0 && c.Work != UDPRR:
		return bad("patience", c.Patience, "0s or more, for work udprr")
	case c.Reverse && c.Work != TCP && c.Work != UDP:
		return bad("reverse", c.Reverse, "work tcp or udp")
	case c.Search && c.BitsPerSecond > 0:
		return bad("rate", c.BitsPerSecond, "none with search, which determines the rate")
	case c.Search && c.Reverse:
		return bad("search", c.Search, "no reverse: the client must send")
	}
	if _, _, err := parseControl(c.Control); err != nil {
		return err
	}
	host, _, err := splitAddress("address", c.Address)
	if err == nil && host == "" {
		return bad("address", c.Address, "HOST, HOST:PORT or [IPV6]:PORT")
	}
	return err
}

func minMessage(w Work) int {
	switch w {
	case UDP, UDPRR:
		return datagramHeaderLen
	case CRR:
		return preambleLen
	default:
		return 1
	}
}

func maxMessage(w Work) int {
	switch w {
	case UDP, UDPRR:
		return MaxDatagramBytes
	default:
		return MaxMessageBytes
	}
}

// splitAddress splits "host:port", "host", "[v6]:port" or "v6", the value of an option.
func splitAddress(option, address string) (host string, port uint16, err error) {
	bad := &ConfigError{Field: option, Value: address, Want: "HOST, HOST:PORT or [IPV6]:PORT"}
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		host, portText = address, strconv.Itoa(DefaultPort)
		if inner, ok := strings.CutPrefix(address, "["); ok {
			if inner, ok = strings.CutSuffix(inner, "]"); ok && isIPv6(inner) {
				host = inner
			}
		}
		if strings.ContainsAny(host, "[]") || (strings.Contains(host, ":") && !isIPv6(host)) {
			return "", 0, bad
		}
	}
	n, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return "", 0, bad
	}
	return host, uint16(n), nil
}

func isIPv6(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.Is6()
}

// parseControl splits "unix:FILE"; an empty text returns empty parts.
func parseControl(control string) (network, path string, err error) {
	if control == "" {
		return "", "", nil
	}
	path, ok := strings.CutPrefix(control, "unix:")
	if !ok || path == "" || len(path) > 107 { // size of sun_path
		return "", "", &ConfigError{Field: "control", Value: control, Want: "unix:FILE with a path of at most 107 bytes"}
	}
	return "unix", path, nil
}

// oneOf returns "a, b or c".
func oneOf[T ~string](all []T) string {
	last := len(all) - 1
	text := string(all[0])
	for _, v := range all[1:last] {
		text += ", " + string(v)
	}
	return text + " or " + string(all[last])
}
