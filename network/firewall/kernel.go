package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"cleat/internal/nlsock"
	"cleat/netns"

	"golang.org/x/sys/unix"
)

// kernel is a socket to the nftables of a namespace.
type kernel struct {
	fd    int
	port  uint32 // its port id
	reads *nlsock.Socket
}

// open opens a socket in a namespace. It works on any thread afterwards.
func open(ns *netns.NS) (*kernel, error) {
	k := &kernel{fd: -1}
	err := ns.Do(func() (err error) {
		k.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		return os.NewSyscallError("socket", err)
	})
	if err == nil {
		k.reads, err = nlsock.New(k.fd)
	}
	if err == nil {
		k.port, err = portOf(k.fd)
	}
	if err != nil {
		k.close()
		return nil, fmt.Errorf("open nftables in %s: %w", ns, err)
	}
	// Errors quote the header of the message that failed, but not the message.
	_ = unix.SetsockoptInt(k.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	return k, nil
}

// portOf returns the port id of a netlink socket.
func portOf(fd int) (uint32, error) {
	at, err := unix.Getsockname(fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	if own, ok := at.(*unix.SockaddrNetlink); ok {
		return own.Pid, nil
	}
	return 0, unix.EAFNOSUPPORT
}

func (k *kernel) close() {
	if k.fd >= 0 {
		_ = unix.Close(k.fd)
	}
}

// dump calls each with the attributes of every object of a kind, e.g. NFT_MSG_GETRULE. A
// filter is a list of attributes.
func (k *kernel) dump(kind uint16, f family, filter []byte, each func(attrs []byte)) error {
	r := nlsock.Request{Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, Body: append(header(f.id), filter...)}
	return k.reads.Dump(r, func(_ uint16, body []byte) {
		if len(body) >= nfgenmsgBytes {
			each(body[nfgenmsgBytes:])
		}
	})
}

// nfgenmsgBytes is the size of struct nfgenmsg.
const nfgenmsgBytes = 4

// header returns a struct nfgenmsg.
func header(family byte) []byte { return []byte{family, unix.NFNETLINK_V0, 0, 0} }

// attributes iterates over the attributes behind a struct nfgenmsg.
func attributes(body []byte) func(func(uint16, []byte) bool) {
	if len(body) < nfgenmsgBytes {
		body = nil
	} else {
		body = body[nfgenmsgBytes:]
	}
	return nlsock.Attributes(body)
}

// number decodes a number in network byte order; 0 if it is malformed.
func number(data []byte) uint32 {
	if len(data) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(data)
}

// text decodes a string.
func text(data []byte) string { return unix.ByteSliceToString(data) }

// commit sends a batch. The kernel applies it before commit returns, or changes nothing and
// returns the error of the first message that failed.
func (k *kernel) commit(b *batch) error {
	steps := b.steps
	data, err := b.finish()
	if err != nil {
		return fmt.Errorf("encode rules: %w", err)
	}
	if err := k.reserve(len(data)); err != nil {
		return err
	}
	if err := unix.Sendto(k.fd, data, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send %d bytes of rules: %w", len(data), err)
	}
	return k.result(steps)
}

// sendOverhead is what the kernel takes from the send buffer besides the message
// (netlink_sendmsg, net/netlink/af_netlink.c), with room to spare.
const sendOverhead = 4096

// reserve makes the send buffer large enough for a batch, which must be sent in one piece.
// Without privileges in the initial user namespace net.core.wmem_max limits the buffer.
func (k *kernel) reserve(size int) error {
	now, err := unix.GetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return fmt.Errorf("read send buffer of netlink socket: %w", err)
	}
	size += sendOverhead
	if now >= size {
		return nil
	}
	err = unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size)
	if errors.Is(err, unix.EPERM) {
		err = unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size)
	}
	if err != nil {
		return fmt.Errorf("enlarge send buffer of netlink socket to %d bytes: %w", size, err)
	}
	return nil
}

// result reads the answers to a batch, which the kernel has put into the receive buffer when
// sendto returned. If many messages failed, as all do whose table is not there, the buffer has the first answers,
// and the kernel reports that it has dropped others.
func (k *kernel) result(steps []string) (failed error) {
	buf := make([]byte, 64<<10)
	var acknowledged bool
	var dropped error
	for {
		n, _, err := unix.Recvfrom(k.fd, buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS):
			dropped = os.NewSyscallError("recvfrom", err)
			continue
		case errors.Is(err, unix.EAGAIN):
			if failed == nil && dropped != nil {
				return dropped
			}
			if failed == nil && !acknowledged {
				failed = errors.New("the kernel did not answer a change of its rules")
			}
			return failed
		case err != nil:
			return errors.Join(failed, os.NewSyscallError("recvfrom", err))
		}
		for m := range messages(buf[:n]) {
			if m.kind != unix.NLMSG_ERROR || len(m.body) < 4 {
				continue
			}
			errno := unix.Errno(-int32(native.Uint32(m.body)))
			switch {
			case errno == 0:
				acknowledged = true
			case failed == nil:
				failed = fmt.Errorf("%s: %w", stepName(steps, m.seq), errno)
			}
		}
	}
}

func stepName(steps []string, seq uint32) string {
	if i := int(seq) - firstSeq; i > 0 && i < len(steps) {
		return steps[i]
	}
	return "change rules"
}

// message is a netlink message.
type message struct {
	kind uint16
	seq  uint32
	port uint32 // of the socket whose request it answers or reports
	body []byte
}

// messages iterates over the messages of a datagram.
func messages(data []byte) func(func(message) bool) {
	return func(yield func(message) bool) {
		for len(data) >= unix.SizeofNlMsghdr {
			size := int(native.Uint32(data))
			if size < unix.SizeofNlMsghdr || size > len(data) {
				return
			}
			m := message{kind: native.Uint16(data[4:]), seq: native.Uint32(data[8:]), port: native.Uint32(data[12:]), body: data[unix.SizeofNlMsghdr:size]}
			if !yield(m) {
				return
			}
			data = data[min(padded(size), len(data)):]
		}
	}
}
