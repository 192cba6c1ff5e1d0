package traffic

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Hello connects to a server, sends a few bytes, waits for the first byte that comes
// back, and returns its time on CLOCK_MONOTONIC. All processes of a machine share that
// clock, so the process that started the client can compute how long everything took.
// Hello makes one attempt and blocks until ctx ends.
func Hello(ctx context.Context, address string) (time.Duration, error) {
	at, err := parseServer(ctx, address)
	if err != nil {
		return 0, err
	}
	sock, err := dialTCP(ctx, at, tcpOptions{noDelay: true}, preamble{channel: channelHello, token: newToken()})
	if err != nil {
		return 0, err
	}
	defer sock.close(false)
	defer context.AfterFunc(ctx, sock.wake)()
	var first [1]byte
	if err := readFull(sock.fd, first[:]); err != nil {
		return 0, fmt.Errorf("wait for the first byte from %s: %w", at, err)
	}
	return MonotonicTime(), nil
}

// MonotonicTime returns the time of CLOCK_MONOTONIC.
func MonotonicTime() time.Duration {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // can't fail: every kernel has the clock
	return time.Duration(ts.Nano())
}
