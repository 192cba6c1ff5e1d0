// Command socks5 runs a program whose TCP connections go through a SOCKS5 proxy (RFC 1928), for
// instance that of "ssh -D 1080 host":
//
//	socks5 127.0.0.1:1080 curl https://example.com
//
// All other flows except DNS are refused. If the program has looked up a name, the proxy gets
// the name and resolves it itself.
package main

import (
	"context"
	"log"
	"net"
	"os"
	"os/exec"
	"strconv"

	"cleat/sandbox"

	"golang.org/x/net/proxy"
)

// tcpOnly is a sandbox.Policy that allows only TCP.
type tcpOnly struct{}

// Judge implements sandbox.Policy. It is not asked about flows to the network's resolver.
func (tcpOnly) Judge(flow sandbox.Flow) sandbox.Verdict {
	if flow.Protocol != sandbox.TCP {
		return sandbox.Verdict{Action: sandbox.Refuse}
	}
	return sandbox.Verdict{Action: sandbox.Allow}
}

// through returns a sandbox.Hook that makes every connection with the dialer.
func through(dialer proxy.ContextDialer) sandbox.Hook {
	return func(ctx context.Context, flow sandbox.Flow, names []string) sandbox.Verdict {
		host := flow.Destination.Addr().String()
		if len(names) > 0 {
			host = names[0]
		}
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(flow.Destination.Port()))))
		if err != nil {
			log.Print(err)
			return sandbox.Verdict{Action: sandbox.Refuse}
		}
		return sandbox.Verdict{Action: sandbox.Use, Conn: conn}
	}
}

func main() {
	sandbox.Init()
	if len(os.Args) < 3 {
		log.Fatal("usage: socks5 PROXY:PORT COMMAND [ARG…]")
	}
	dialer, err := proxy.SOCKS5("tcp", os.Args[1], nil, proxy.Direct)
	if err != nil {
		log.Fatal(err)
	}
	network, err := sandbox.New(sandbox.Config{Policy: tcpOnly{}, Hook: through(dialer.(proxy.ContextDialer))})
	if err != nil {
		log.Fatal(err)
	}
	cmd := exec.Command(os.Args[2], os.Args[3:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := network.Exec(context.Background(), cmd); err != nil {
		log.Fatal(err)
	}
}
