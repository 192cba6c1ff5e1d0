package sys

import (
	"bytes"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestStructLayout(t *testing.T) {
	var m mmsghdr
	var p MPTCPInfo
	tests := []struct {
		name      string
		got, want uintptr
	}{
		{"sizeof(struct mmsghdr)", unsafe.Sizeof(m), 64},
		{"offsetof(struct mmsghdr, msg_len)", unsafe.Offsetof(m.len), 56},
		{"CMSG_SPACE(sizeof(int))", segmentSpace, uintptr(unix.CmsgSpace(4))},
		{"offsetof(struct mptcp_info, mptcpi_flags)", unsafe.Offsetof(p.Flags), 8},
		{"offsetof(struct mptcp_info, mptcpi_token)", unsafe.Offsetof(p.Token), 12},
		{"offsetof(struct mptcp_info, mptcpi_write_seq)", unsafe.Offsetof(p.WriteSeq), 16},
		{"offsetof(struct mptcp_info, mptcpi_local_addr_used)", unsafe.Offsetof(p.LocalAddrUsed), 40},
		{"offsetof(struct mptcp_info, mptcpi_retransmits)", unsafe.Offsetof(p.Retransmits), 44},
		{"offsetof(struct mptcp_info, mptcpi_bytes_retrans)", unsafe.Offsetof(p.BytesRetrans), 48},
		{"offsetof(struct mptcp_info, mptcpi_subflows_total)", unsafe.Offsetof(p.SubflowsTotal), 80},
		{"sizeof(struct mptcp_info)", unsafe.Sizeof(p), 96},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.got != tt.want {
				t.Errorf("got %d, want %d", tt.got, tt.want)
			}
		})
	}
}

// udpPair returns two UDP sockets on loopback, connected to each other.
func udpPair(t *testing.T) (a, b int) {
	t.Helper()
	open := func() (int, *unix.SockaddrInet4) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			t.Fatal(err)
		}
		sa, err := unix.Getsockname(fd)
		if err != nil {
			t.Fatal(err)
		}
		return fd, sa.(*unix.SockaddrInet4)
	}
	a, aa := open()
	b, bb := open()
	if err := unix.Connect(a, bb); err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(b, aa); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func TestBatchSendsAndReceives(t *testing.T) {
	a, b := udpPair(t)
	out := NewBatch(3, 2)
	payload := []byte("payload")
	heads := [][]byte{{1}, {2, 2}, {3, 3, 3}}
	for i, h := range heads {
		out.SetBuffer(i, 0, h)
		out.SetBuffer(i, 1, payload)
		out.SetBuffers(i, 2)
	}
	if n, err := out.Send(a, 0, 3, 0); n != 3 || err != nil {
		t.Fatalf("Send = %d, %v; want 3 messages", n, err)
	}
	in := NewBatch(8, 1)
	bufs := make([][]byte, in.Len())
	for i := range bufs {
		bufs[i] = make([]byte, 64)
		in.SetBuffer(i, 0, bufs[i])
		in.SetBuffers(i, 1)
	}
	got := 0
	for got < 3 {
		n, err := in.Recv(b, unix.MSG_WAITFORONE)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			want := append(bytes.Clone(heads[got]), payload...)
			if !bytes.Equal(bufs[i][:in.Size(i)], want) {
				t.Errorf("message %d is %q, want %q", got, bufs[i][:in.Size(i)], want)
			}
			if in.Segment(i) != 0 {
				t.Errorf("message %d: segment %d", got, in.Segment(i))
			}
			got++
		}
	}
}

func TestBatchSegments(t *testing.T) {
	a, b := udpPair(t)
	if err := unix.SetsockoptInt(b, unix.SOL_UDP, unix.UDP_GRO, 1); err != nil {
		t.Skip("UDP_GRO: ", err)
	}
	out := NewBatch(1, 1)
	out.SetBuffer(0, 0, bytes.Repeat([]byte("0123456789"), 10))
	out.SetBuffers(0, 1)
	out.SetSegment(0, 30)
	if _, err := out.Send(a, 0, 1, 0); err != nil {
		t.Fatal(err)
	}
	out.SetSegment(0, 0)
	in := NewBatch(4, 1)
	for i := range in.Len() {
		in.SetBuffer(i, 0, make([]byte, 65536))
		in.SetBuffers(i, 1)
	}
	bytesIn := 0
	for bytesIn < 100 {
		n, err := in.Recv(b, unix.MSG_WAITFORONE)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			bytesIn += in.Size(i)
			if s := in.Segment(i); in.Size(i) > 30 && s != 30 {
				t.Errorf("%d bytes in one message with segment size %d, want 30", in.Size(i), s)
			}
		}
	}
	if bytesIn != 100 {
		t.Errorf("received %d bytes, want 100", bytesIn)
	}
}

func TestBatchAllocatesNothing(t *testing.T) {
	a, b := udpPair(t)
	out, in := NewBatch(4, 1), NewBatch(4, 1)
	buf := make([]byte, 64)
	for i := range 4 {
		out.SetBuffer(i, 0, buf)
		out.SetBuffers(i, 1)
		in.SetBuffer(i, 0, make([]byte, 64))
		in.SetBuffers(i, 1)
	}
	allocs := testing.AllocsPerRun(20, func() {
		if n, err := out.Send(a, 0, 4, 0); n != 4 || err != nil {
			t.Fatal(n, err)
		}
		for got := 0; got < 4; {
			n, err := in.Recv(b, unix.MSG_WAITFORONE)
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations per batch, want 0", allocs)
	}
}

func TestMPTCPInfoOfPlainTCP(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := GetMPTCPInfo(fd); err == nil {
		t.Error("a plain TCP socket has MPTCP information")
	}
}
