package sandbox_test

import (
	"testing"

	"cleat/lab"
	"cleat/sandbox"
)

func TestWrap(t *testing.T) {
	lab.Need(t)
	t.Log(run(t, sandbox.Config{}, "show", "/proc/net/dev", "/proc/net/route", "/proc/net/if_inet6", "/proc/net/fib_trie","/proc/net/ipv6_route", "/proc/self/status","/etc/resolv.conf", "/proc/sys/net/ipv4/ping_group_range"))
}
