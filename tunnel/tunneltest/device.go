package tunneltest

import (
	"errors"
	"fmt"

	"cleat/packet"

	"golang.org/x/sys/unix"
)

// Device stands in for a TUN device with a virtio header. Make it with NewDevice.
type Device struct {
	fd, host int
	buf      []byte
}

// NewDevice returns a Device, which must be closed.
func NewDevice() (*Device, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("create device: %w", err)
	}
	enlarge(fds[0], unix.SO_SNDBUFFORCE, unix.SO_SNDBUF)
	return &Device{fd: fds[0], host: fds[1], buf: make([]byte, 1<<17)}, nil
}

// bufferBytes is what a busy machine may let pile up: a device refuses nothing, but a socket
// with a buffer of the usual size refuses what follows 170 small packets.
const bufferBytes = 8 << 20

// enlarge enlarges a socket's buffer, as far as the kernel allows.
func enlarge(fd, force, option int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, bufferBytes) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, bufferBytes)
	}
}

// FD returns the Tunnel's end.
func (d *Device) FD() int { return d.fd }

// Close closes both ends.
func (d *Device) Close() error { return errors.Join(unix.Close(d.fd), unix.Close(d.host)) }

// Send passes a packet to the Tunnel, preceded by its virtio header. It waits for room.
func (d *Device) Send(vnet packet.VNetHdr, pkt []byte) error {
	b := make([]byte, packet.VNetHdrBytes, packet.VNetHdrBytes+len(pkt))
	vnet.Put(b)
	b = append(b, pkt...)
	for {
		_, err := unix.Write(d.host, b)
		if !errors.Is(err, unix.EAGAIN) {
			return err
		}
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(d.host), Events: unix.POLLOUT}}, 1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Receive waits up to 10 ms for a write of the Tunnel. It returns the packets that the
// write stands for, with their checksums.
func (d *Device) Receive() ([][]byte, error) {
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(d.host), Events: unix.POLLIN}}, 10); err != nil && !errors.Is(err, unix.EINTR) {
		return nil, err
	}
	n, err := unix.Read(d.host, d.buf)
	if errors.Is(err, unix.EAGAIN) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var vnet packet.VNetHdr
	if err := vnet.Parse(d.buf[:n]); err != nil {
		return nil, err
	}
	var s packet.Splitter
	if err := s.Start(&vnet, d.buf[packet.VNetHdrBytes:n]); err != nil {
		return nil, err
	}
	var all [][]byte
	for {
		b := make([]byte, s.MaxBytes())
		n := s.Next(b)
		if n == 0 {
			return all, nil
		}
		all = append(all, b[:n])
	}
}
