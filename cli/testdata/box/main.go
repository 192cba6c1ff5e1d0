// Command box is all that containers of the stories about Docker have.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: box serve PORT… | lookup NAME | ask ADDRESS:PORT | hold SOCKET PIDFILE COMMAND…")
		os.Exit(2)
	}
	var err error
	switch os.Args[1] {
	case "serve":
		err = serve(os.Args[2:])
	case "lookup":
		err = lookup(os.Args[2])
	case "hold":
		err = hold(os.Args[2], os.Args[3], os.Args[4:])
	case "cat":
		var text []byte
		text, err = os.ReadFile(os.Args[2])
		os.Stdout.Write(text)
	case "ask":
		err = ask(os.Args[2])
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// serve tells each client its address, until it is stopped.
func serve(ports []string) error {
	for _, port := range ports {
		l, err := net.Listen("tcp", ":"+port)
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
				fmt.Fprintf(c, "%s\n", strings.TrimPrefix(host, "::ffff:"))
				c.Close()
			}
		}()
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	<-stop
	return nil
}

// lookup prints the addresses of a name, in one line.
func lookup(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupHost(ctx, name)
	slices.Sort(addrs)
	fmt.Println(strings.Join(addrs, " "))
	return err
}

func ask(address string) error {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return err
	}
	c.SetDeadline(time.Now().Add(2 * time.Second))
	_, err = io.Copy(os.Stdout, c)
	return err
}

// hold does for a socket and a command what systemd does: the socket exists before the command, which gets
// it, and the command is started again whenever it ends.
func hold(socket, pidFile string, command []string) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	for {
		cmd := exec.Command("sh", append([]string{"-c", `LISTEN_PID=$$ exec "$@"`, "sh"}, command...)...)
		cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = []*os.File{f}, os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), "LISTEN_FDS=1")
		if err := cmd.Start(); err != nil {
			return err
		}
		if err := os.WriteFile(pidFile, fmt.Append(nil, cmd.Process.Pid), 0o600); err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case <-stop:
			cmd.Process.Signal(syscall.SIGTERM)
			<-ended
			return nil
		case <-ended:
			time.Sleep(300 * time.Millisecond) // RestartSec
		}
	}
}
