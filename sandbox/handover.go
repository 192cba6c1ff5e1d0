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

	"golang.org/x/sys/unix"
)

// plan is what the inside is to do: one message, which waits in the socket
// before the inside begins.
type plan struct {
	Interface          string
	MTU                int
	Queues             int
	Addr4, Addr6       netip.Prefix
	Gateway4, Gateway6 netip.Addr
	Configure          bool // addresses, routes, state
	Replace            bool
	Need6              bool         // it is an error that IPv6 can't be had
	Splice             bool         // open the gate of the splice tier
	Fresh              bool         // hand over what the seccomp tier takes
	Supervise          bool         // put its filter on the command
	Unsupervised       bool         // or go without, where that can't be had
	Bind               bool         // stay, and bind sockets for it
	Sysctls            [][2]string  // path below /proc/sys and value; those that can't be set are warnings
	Sockets            socketCounts // unbound ones to hand over
	Diagnose           bool         // hand over a sock_diag socket
	ResolvConf         []byte       // nil: none
	Mount              bool         // ResolvConf over /etc/resolv.conf
	Exec               string       // path of the command; "": none
}

// socketCounts is how many sockets of each kind the host's side wants: sockets
// that are made inside belong there for life, wherever they are bound.
type socketCounts struct{ TCP4, TCP6, UDP4, UDP6 int }

// report is a message from the inside, with descriptors beside it.
type report struct {
	Stage    stage
	Files    []kind        `json:",omitempty"` // what the descriptors are, in order
	Step     string        `json:",omitempty"` // the step that failed; Stage is stageFailed
	Errno    syscall.Errno `json:",omitempty"`
	Message  string        `json:",omitempty"` // the error's text
	Remedy   string        `json:",omitempty"`
	Warnings []string      `json:",omitempty"`
	NoSplice string        `json:",omitempty"` // why the splice tier can't be had

	NoSeccomp string `json:",omitempty"` // and the seccomp tier
}

// stage is how far the inside is.
type stage string

const (
	stageDevice  stage = "device"  // it is there, and comes with the message
	stageSockets stage = "sockets" // some of them
	stageNetwork stage = "network" // everything is there: waiting for the go
	stageFailed  stage = "failed"
)

// kind is what a descriptor is.
type kind string

const (
	kindTUN  kind = "tun"
	kindDiag kind = "diag"
	kindTCP4 kind = "tcp4"
	kindTCP6 kind = "tcp6"
	kindUDP4 kind = "udp4"
	kindUDP6 kind = "udp6"

	kindGate4   kind = "gate4" // of the splice tier
	kindGate6   kind = "gate6"
	kindCaller4 kind = "caller4"
	kindCaller6 kind = "caller6"
	kindRules   kind = "rules"

	kindFresh4 kind = "fresh4" // of the seccomp tier
	kindFresh6 kind = "fresh6"
	kindRoutes kind = "routes"
	kindNews   kind = "news" // about routes
	kindNotify kind = "notify"
)

// goAhead is the host's message that lets the command begin.
const goAhead = "go"

// maxMessage bounds messages; a plan with a long resolv.conf is some kilobytes.
const maxMessage = 64 << 10

// maxFiles is how many descriptors one message carries; the kernel's limit is
// 253 (SCM_MAX_FD, include/net/scm.h).
const maxFiles = 128

// channel is the host's end of the socket to the inside.
type channel struct{ conn *net.UnixConn }

// newChannel makes both ends. Message boundaries are kept.
func newChannel() (*channel, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "sandbox"), os.NewFile(uintptr(fds[1]), "sandbox inside")
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	return &channel{conn.(*net.UnixConn)}, theirs, nil
}

func (c *channel) send(p plan) error {
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("write the plan for the inside: %w", err)
	}
	if len(b) > maxMessage {
		return configError("DNS.Search", fmt.Sprint(len(b), " bytes in all"), "a shorter list")
	}
	return c.write(b)
}

func (c *channel) goAhead() error { return c.write([]byte(goAhead)) }

func (c *channel) write(b []byte) error {
	if _, err := c.conn.Write(b); err != nil {
		return fmt.Errorf("write to the inside: %w", err)
	}
	return nil
}

func (c *channel) close() { c.conn.Close() }

// receive waits for the next report. The descriptors are the caller's. io.EOF
// says that the inside is gone, or the command runs in its place. A failure that
// the inside reports is a *SetupError.
func (c *channel) receive(ctx context.Context) (report, []int, error) {
	stop := context.AfterFunc(ctx, func() { c.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := c.conn.ReadMsgUnix(buf, oob)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// What was said before ctx ended counts: why the command ended, for one.
		n, oobn, flags, err = c.pending(buf, oob)
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		return report{}, nil, ctx.Err()
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), err == nil && n == 0:
		return report{}, nil, io.EOF
	case err != nil:
		return report{}, nil, fmt.Errorf("read from the inside: %w", err)
	}
	fds, err := descriptors(oob[:oobn])
	var r report
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.New("message is too long")
	}
	if err == nil {
		r, err = parseReport(buf[:n], len(fds))
	}
	if err != nil {
		closeAll(fds)
		var setup *SetupError
		if !errors.As(err, &setup) {
			err = fmt.Errorf("read from the inside: %w", err)
		}
		return report{}, nil, err
	}
	return r, fds, nil
}

// parseReport reads the text of a message that came with so many descriptors.
func parseReport(text []byte, fds int) (r report, err error) {
	if err := json.Unmarshal(text, &r); err != nil {
		return report{}, err
	}
	if len(r.Files) != fds {
		return report{}, fmt.Errorf("%d descriptors came, %d were announced", fds, len(r.Files))
	}
	if r.Stage == stageFailed {
		return report{}, r.failure()
	}
	return r, nil
}

// pending is ReadMsgUnix without waiting; EAGAIN says that there is nothing.
func (c *channel) pending(buf, oob []byte) (n, oobn, flags int, err error) {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return 0, 0, 0, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		n, oobn, flags, _, failed = unix.Recvmsg(int(fd), buf, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	})
	return n, oobn, flags, errors.Join(err, failed)
}

// descriptors are those in a control message. The kernel has made them already,
// so all are found before anything is refused.
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

func (r report) failure() error {
	return &SetupError{Step: r.Step, Remedy: r.Remedy, Err: causeError{r.Message, r.Errno}}
}

// causeError is an error that came from the inside as text, with the errno that
// it wrapped; 0: none.
type causeError struct {
	text  string
	errno syscall.Errno
}

func (e causeError) Error() string { return e.text }

func (e causeError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}

// failed is the report of an error.
func failed(err error) report {
	r := report{Stage: stageFailed, Step: "set up network", Message: err.Error()}
	var setup *SetupError
	if errors.As(err, &setup) {
		r.Step, r.Remedy, r.Message = setup.Step, setup.Remedy, setup.Err.Error()
	}
	errors.As(err, &r.Errno)
	return r
}

// insideEnd is the inside's end. It blocks its thread, which has nothing else to
// do.
type insideEnd int

func (e insideEnd) plan() (plan, error) {
	var p plan
	b, err := e.read()
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return p, fmt.Errorf("read the plan: %w", err)
	}
	return p, nil
}

// wait blocks until the host's side moves bytes.
func (e insideEnd) wait() error {
	b, err := e.read()
	if err == nil && string(b) != goAhead {
		err = fmt.Errorf("unexpected message %q", b)
	}
	return err
}

// errHostGone says that the host's side has closed its end: it has failed, and
// said why, or was killed.
var errHostGone = errors.New("the host's side is gone")

func (e insideEnd) read() ([]byte, error) {
	buf := make([]byte, maxMessage)
	for {
		n, err := unix.Read(int(e), buf)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, fmt.Errorf("read from the host's side: %w", err)
		case n == 0:
			return nil, errHostGone
		default:
			return buf[:n], nil
		}
	}
}

func (e insideEnd) send(r report, fds ...int) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		err := unix.Sendmsg(int(e), b, oob, nil, unix.MSG_NOSIGNAL)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("write to the host's side: %w", err)
		}
	}
}
