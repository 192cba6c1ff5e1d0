package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"cleat/internal/localsock"

	"golang.org/x/sys/unix"
)

// plan tells the setup process what to do. It is one message, which waits in the socket
// before that process starts.
type plan struct {
	Interface          string
	Device             Device
	MAC                MAC // of a TAP
	MTU                int
	Queues             int
	Addr4, Addr6       netip.Prefix
	Gateway4, Gateway6 netip.Addr
	Configure          bool // add addresses and routes, and bring the device up
	ReplaceTUN         bool
	Need6              bool           // fail on a kernel without IPv6
	Splice             bool           // set up the splice tier
	Supervise          bool           // install the seccomp tier's filter
	SuperviseOptional  bool           // go on without the filter where it can't be installed
	ServeBinds         bool           // stay after the set-up, and bind sockets for containers
	Sysctls            [][2]string    // path below /proc/sys and value; a failure is a warning
	Sockets            map[fdKind]int // how many sockets of each kind to open and hand over; those of a missing family are left out
	ResolvConf         []byte         // nil: none
	MountResolvConf    bool           // mount ResolvConf over /etc/resolv.conf
	Exec               string         // path of the command; "": none
}

// addSockets asks for sockets. The plan counts them, since a message has no room for a list of
// thousands of ports.
func (p *plan) addSockets(kinds []fdKind) {
	for _, k := range kinds {
		p.Sockets[k]++
	}
}

// report is a message of the setup process. Descriptors come with it.
type report struct {
	Stage     stage
	Files     []fdKind      `json:",omitempty"` // what the descriptors are, in order
	Step      string        `json:",omitempty"` // the step that failed, for stageFailed
	Errno     syscall.Errno `json:",omitempty"`
	Message   string        `json:",omitempty"` // text of the error
	Remedy    string        `json:",omitempty"`
	Warnings  []string      `json:",omitempty"`
	NoSplice  string        `json:",omitempty"` // why the splice tier is missing
	NoSeccomp string        `json:",omitempty"` // why the seccomp tier is missing
}

// stage is what a report announces.
type stage string

const (
	stageDevice  stage = "device"  // the device, with its descriptors
	stageSockets stage = "sockets" // some of the sockets
	stageNetwork stage = "network" // the set-up is complete
	stageFailed  stage = "failed"
)

// fdKind is what a descriptor from the setup process is. Sockets that are created inside
// belong to that network namespace for life, whoever binds them.
type fdKind string

const (
	fdTUN  fdKind = "tun"
	fdDiag fdKind = "diag" // sock_diag, to find listeners

	fdTCP4 fdKind = "tcp4" // for reverse forwards
	fdTCP6 fdKind = "tcp6"
	fdUDP4 fdKind = "udp4"
	fdUDP6 fdKind = "udp6"

	fdGate4   fdKind = "gate4" // splice tier: transparent listeners,
	fdGate6   fdKind = "gate6"
	fdCaller4 fdKind = "caller4" // sockets that others are made from,
	fdCaller6 fdKind = "caller6"
	fdRules   fdKind = "rules" // and the netlink socket that owns the rules

	fdFresh4 fdKind = "fresh4" // seccomp tier: sockets with default options,
	fdFresh6 fdKind = "fresh6"
	fdRoutes fdKind = "routes" // a netlink socket to ask for routes,
	fdNews   fdKind = "news"   // one that hears of changes to them,
	fdNotify fdKind = "notify" // and the filter's notifications
)

// socket opens a socket of a kind in the calling thread's network namespace.
func (k fdKind) socket() (int, error) {
	flags := unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	switch k {
	case fdRoutes, fdNews, fdFresh4, fdFresh6:
		flags = unix.SOCK_CLOEXEC // keeps os.NewFile from adding them to Go's network poller
	}
	switch k {
	case fdTCP4, fdFresh4:
		return unix.Socket(unix.AF_INET, unix.SOCK_STREAM|flags, 0)
	case fdTCP6, fdFresh6:
		return unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|flags, 0)
	case fdUDP4:
		return unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|flags, 0)
	case fdUDP6:
		return unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|flags, 0)
	case fdRoutes, fdNews:
		return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|flags, unix.NETLINK_ROUTE)
	}
	return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|flags, unix.NETLINK_SOCK_DIAG)
}

// goMessage is the host side's message that lets the command start.
const goMessage = "go"

// maxMessage bounds messages in bytes. A plan with a long resolv.conf has some kilobytes.
const maxMessage = 64 << 10

// maxFiles is how many descriptors one message carries at most. The kernel's limit is 253
// (SCM_MAX_FD, include/net/scm.h).
const maxFiles = 128

// channel is the host side's end of the socket to the setup process.
type channel struct{ conn *net.UnixConn }

// newChannel returns both ends of a socket pair that keeps message boundaries.
func newChannel() (*channel, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "sandbox host side"), os.NewFile(uintptr(fds[1]), "sandbox setup process")
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("open a socket pair: %w", err)
	}
	return &channel{conn.(*net.UnixConn)}, theirs, nil
}

// send sends a plan or a bindMessage, with descriptors.
func (c *channel) send(message any, fds ...int) error {
	b, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode a message to the setup process: %w", err)
	}
	if len(b) > maxMessage { // of a plan, whose other fields are short
		return configError("DNS.Search", fmt.Sprint(len(b), " bytes in all"), "a shorter list")
	}
	return c.write(b, fds...)
}

func (c *channel) write(b []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := c.conn.WriteMsgUnix(b, oob, nil); err != nil {
		return fmt.Errorf("write to the setup process: %w", err)
	}
	return nil
}

func (c *channel) close() { c.conn.Close() }

// receive waits for the next report. The caller owns the descriptors. The error is io.EOF if
// the setup process has ended or has become the command, and a *SetupError if it reports a
// failure.
func (c *channel) receive(ctx context.Context) (report, []int, error) {
	stop := context.AfterFunc(ctx, func() { c.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := c.conn.ReadMsgUnix(buf, oob)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// A report that arrived before ctx ended counts: it may say why the command ended.
		err = localsock.Control(c.conn, func(fd int) (err error) {
			n, oobn, flags, _, err = unix.Recvmsg(fd, buf, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
			return err
		})
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		return report{}, nil, ctx.Err()
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), err == nil && n == 0:
		return report{}, nil, io.EOF
	case err != nil:
		return report{}, nil, fmt.Errorf("read from the setup process: %w", err)
	}
	fds, err := descriptors(oob[:oobn])
	var r report
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.New("message too long")
	}
	if err == nil {
		r, err = parseReport(buf[:n], len(fds))
	}
	if err != nil {
		closeAll(fds)
		var setup *SetupError
		if !errors.As(err, &setup) {
			err = fmt.Errorf("read from the setup process: %w", err)
		}
		return report{}, nil, err
	}
	return r, fds, nil
}

// parseReport parses a message that came with a number of descriptors. A report of a failure
// is returned as a *SetupError.
func parseReport(text []byte, fds int) (r report, err error) {
	if err := json.Unmarshal(text, &r); err != nil {
		return report{}, err
	}
	if len(r.Files) != fds {
		return report{}, fmt.Errorf("got %d descriptors, %d were announced", fds, len(r.Files))
	}
	if r.Stage == stageFailed {
		return report{}, &SetupError{Step: r.Step, Remedy: r.Remedy, Err: remoteError{r.Message, r.Errno}}
	}
	return r, nil
}

// descriptors returns the descriptors in a control message. The kernel has installed them
// already, so those that were found are returned with an error, too.
func descriptors(oob []byte) ([]int, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	var all []int
	for i := range msgs {
		fds, e := unix.ParseUnixRights(&msgs[i])
		all = append(all, fds...)
		err = errors.Join(err, e)
	}
	return all, err
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// remoteError is an error of the setup process: its text, and the errno that it wrapped, or 0.
type remoteError struct {
	text  string
	errno syscall.Errno
}

func (e remoteError) Error() string { return e.text }

func (e remoteError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}

func failureReport(err error) report {
	r := report{Stage: stageFailed, Step: "set up network", Message: err.Error()}
	var setup *SetupError
	if errors.As(err, &setup) {
		r.Step, r.Remedy, r.Message = setup.Step, setup.Remedy, setup.Err.Error()
	}
	errors.As(err, &r.Errno)
	return r
}

// hostConn is the setup process's end of the channel. Its methods block the thread, which
// has nothing else to do.
type hostConn int

func (c hostConn) readPlan() (plan, error) {
	var p plan
	b, _, err := c.receive()
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return p, fmt.Errorf("decode the plan: %w", err)
	}
	return p, nil
}

// waitForGo blocks until the host side moves packets.
func (c hostConn) waitForGo() error {
	b, _, err := c.receive()
	if err == nil && string(b) != goMessage {
		err = fmt.Errorf("unexpected message %q from the host side", b)
	}
	return err
}

// errHostClosed means that the host side has closed its end: it was killed, or it has failed
// and reported that itself.
var errHostClosed = errors.New("the host side has closed the connection")

// receive waits for a message. The caller owns the descriptors, of an error as well.
func (c hostConn) receive() (text []byte, fds []int, err error) {
	buf, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*maxFiles))
	for {
		n, oobn, _, _, err := unix.Recvmsg(int(c), buf, oob, unix.MSG_CMSG_CLOEXEC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, nil, fmt.Errorf("read from the host side: %w", err)
		case n == 0:
			return nil, nil, errHostClosed
		}
		fds, err := descriptors(oob[:oobn])
		return buf[:n], fds, err
	}
}

// send sends a report or a bindMessage, with descriptors.
func (c hostConn) send(message any, fds ...int) error {
	b, err := json.Marshal(message)
	if err != nil {
		return err
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		err := unix.Sendmsg(int(c), b, oob, nil, unix.MSG_NOSIGNAL)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("write to the host side: %w", err)
		}
	}
}
