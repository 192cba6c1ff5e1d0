// Command whoami tells each client its address. "whoami [tcp:PORT | udp:PORT]..." answers
// "from ADDRESS", without the port, to every connection or datagram.
package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
)

func main() {
	for _, arg := range os.Args[1:] {
		network, port, _ := strings.Cut(arg, ":")
		switch network {
		case "tcp":
			l, err := net.Listen("tcp", ":"+port)
			check(err)
			go func() {
				for {
					c, err := l.Accept()
					check(err)
					fmt.Fprintf(c, "from %s\n", address(c.RemoteAddr()))
					c.Close()
				}
			}()
		case "udp":
			c, err := net.ListenPacket("udp", ":"+port)
			check(err)
			go func() {
				for {
					_, from, err := c.ReadFrom(make([]byte, 64))
					check(err)
					_, err = c.WriteTo([]byte("from "+address(from)+"\n"), from)
					check(err)
				}
			}()
		}
	}
	select {}
}

func address(a net.Addr) string { return netip.MustParseAddrPort(a.String()).Addr().Unmap().String() }

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
