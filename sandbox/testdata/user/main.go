// Command user is a program of another module that uses package sandbox as a container runtime
// does: it starts itself as a container, which inherits a file, changes its root, and sets up
// its network.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"

	"cleat/sandbox"
)

func main() {
	sandbox.Init()
	side := host
	if len(os.Args) > 2 && os.Args[1] == "container" {
		side = container
	}
	if err := side(os.Args[len(os.Args)-1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// host runs the container and its network.
func host(address string) error {
	flows := make(chan string, 16)
	network, err := sandbox.New(sandbox.Config{
		Interface: "eth0",
		MTU:       9000,
		Addr4:     netip.MustParsePrefix("10.88.0.2/16"),
		DNS:       sandbox.DNS{Off: true},
		Log:       slog.Default(),
		Limits:    sandbox.Limits{Flows: 1024},
		Policy:    openPolicy{},
		Hook: func(_ context.Context, f sandbox.Flow, _ []string) sandbox.Verdict {
			flows <- fmt.Sprint(f.Protocol, " ", f.Destination)
			return sandbox.Verdict{}
		},
	})
	if err != nil {
		return err
	}
	defer network.Close()
	own, err := os.Open("/etc/hostname")
	if err != nil {
		return err
	}
	defer own.Close()
	cmd := exec.Command("/proc/self/exe", "container", address)
	cmd.ExtraFiles = []*os.File{own}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := network.Attach(cmd); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return sandbox.StartError(err)
	}
	if err := network.Run(context.Background()); err != nil {
		return errors.Join(err, cmd.Wait())
	}
	fmt.Println("host saw", <-flows)
	return cmd.Wait()
}

type openPolicy struct{}

func (openPolicy) Judge(sandbox.Flow) sandbox.Verdict {
	return sandbox.Verdict{Action: sandbox.Allow}
}

// container is the first process of the container.
func container(address string) error {
	guest, err := sandbox.Open()
	if err != nil {
		return err
	}
	defer guest.Close()
	if err := syscall.Chroot(os.TempDir()); err != nil {
		return err
	}
	if err := guest.SetupNetwork(); err != nil {
		return err
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	text, err := io.ReadAll(conn)
	fmt.Printf("container read %q\n", text)
	return err
}
