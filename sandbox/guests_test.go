package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guests are the programs that the test binary runs in a sandbox.
func guests() map[string]func(args []string) error {
	return map[string]func(args []string) error{
		"add-dropping-rules":  addDroppingRules,
		"attach":              attachedProcess,
		"attached-families":   attachedFamilies,
		"attached-ids":        attachedIDs,
		"bind-at":             bindAt,
		"bind-each-kind":      bindEachKind,
		"bind-interrupted":    bindInterrupted,
		"bring-filter":        bringFilter,
		"call-on-demand":      callOnDemand,
		"chaos":               chaos,
		"chaos-worker":        chaosWorker,
		"contain":             contain,
		"datagrams":           datagrams,
		"dial":                dial,
		"dial-until-answered": dialUntilAnswered,
		"echo":                echo,
		"escape":              escape,
		"families":            families,
		"families-i386":       familiesI386,
		"fds":                 fds,
		"flush-rules":         flushRules,
		"forge-answers":       forgeAnswers,
		"hold":                holdConnection,
		"host-side":           hostSide,
		"host-side-of-tables": hostSideOfTables,
		"ids":                 ids,
		"intrude":             intrude,
		"listen-low-port":     listenLowPort,
		"lookup":              lookup,
		"ping":                ping,
		"queue-guest":         queueGuest,
		"queue-stage":         queueStage,
		"random":              randomGuest,
		"resolved-host":       resolvedHost,
		"run-as-user":         runAsUser,
		"sealed":              sealed,
		"sealed-idle":         sealedAndIdle,
		"serve":               serve,
		"serve-itself":        serveItself,
		"serve-then-wait":     serveThenWait,
		"show":                show,
		"show-resolvers":      showResolvers,
		"slow-connects":       slowConnects,
		"sockets":             sockets,
		"spy":                 spy,
		"stage-unprivileged":  stageUnprivileged,
		"stall":               stall,
		"stall-beside":        stallBeside,
		"tables":              tables,
		"unprivileged":        unprivileged,
		"use-message":         useMessage,
		"use-pidfd":           usePidfd,
		"wait":                waitThenDial,
		"wait-stderr":         waitThenDialStderr,
	}
}

// show prints files, each on one line.
func show(paths []string) error {
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		fmt.Println(strings.Join(strings.Fields(string(b)), " "))
	}
	return nil
}

// fds prints what the open descriptors are, without those of the Go runtime.
func fds([]string) error {
	all, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return err
	}
	for _, f := range all {
		to, err := os.Readlink(f)
		if err == nil && !strings.HasPrefix(to, "anon_inode:[event") && !strings.HasPrefix(to, "/proc/") {
			fmt.Println(filepath.Base(f), strings.SplitN(to, ":", 2)[0])
		}
	}
	return nil
}

// ids prints uid, gid and capabilities.
func ids([]string) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return err
	}
	fmt.Printf("%d %d %#x\n", os.Getuid(), os.Getgid(), have[0].Effective|have[0].Permitted|have[0].Inheritable)
	return nil
}

// dial connects to addresses, and prints what each server sends first, or the errno.
func dial(args []string) error {
	network := args[0]
	for _, addr := range args[1:] {
		output, err := ask(network, addr)
		var errno syscall.Errno
		switch {
		case errors.As(err, &errno):
			fmt.Println(unix.ErrnoName(errno))
		case err != nil:
			return err
		default:
			fmt.Println(output)
		}
	}
	return nil
}

// ask sends "hello" and returns what the server sends first.
func ask(network, addr string) (string, error) {
	c, err := net.DialTimeout(network, addr, 30*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := c.Write([]byte("hello")); err != nil {
		return "", err
	}
	buf := make([]byte, 1500)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

// dialUntilAnswered dials until a server answers.
func dialUntilAnswered(args []string) error {
	for range 1000 {
		if output, err := ask("tcp", args[0]); err == nil {
			fmt.Println(output)
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("no server answers")
}

// echo sends 8 MiB and counts the bytes that come back.
func echo(args []string) error {
	c, err := net.Dial("tcp", args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	const size = 8 << 20
	sent := make(chan error, 1)
	go func() {
		_, err := io.CopyN(c, zeros{}, size)
		sent <- errors.Join(err, c.(*net.TCPConn).CloseWrite())
	}()
	n, err := io.Copy(io.Discard, c)
	if err := errors.Join(err, <-sent); err != nil {
		return err
	}
	if n != size {
		return fmt.Errorf("%d of %d bytes came back", n, size)
	}
	fmt.Println("same")
	return nil
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// lookup prints an IPv4 address of each name.
func lookup(names []string) error {
	r := net.Resolver{PreferGo: true}
	for _, name := range names {
		addrs, err := r.LookupNetIP(context.Background(), "ip4", name)
		if err != nil {
			return err
		}
		fmt.Println(addrs[0])
	}
	return nil
}

// ping sends an echo request without privileges, and prints the sender of the reply.
func ping(args []string) error {
	c, err := net.ListenPacket("udp4", "0.0.0.0:0")
	if err != nil {
		return err
	}
	c.Close()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
	if err != nil {
		return fmt.Errorf("open ping socket: %w", err)
	}
	defer unix.Close(fd)
	ip := net.ParseIP(args[0]).To4()
	// an echo request; the kernel fills in identifier and checksum
	if err := unix.Sendto(fd, []byte{8, 0, 0, 0, 0, 0, 0, 1, 'h', 'i'}, 0, &unix.SockaddrInet4{Addr: [4]byte(ip)}); err != nil {
		return err
	}
	buf := make([]byte, 1500)
	n, from, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return err
	}
	fmt.Println(n, net.IP(from.(*unix.SockaddrInet4).Addr[:]))
	return nil
}

// serve answers one client on each address ("tcp/addr" or "udp/addr") with the network
// and the address that it sees. It prints "ready" when it listens.
func serve(args []string) error {
	done := make(chan error, len(args))
	for _, a := range args {
		network, addr, _ := strings.Cut(a, "/")
		if network == "tcp" {
			l, err := net.Listen("tcp", addr)
			if err != nil {
				return err
			}
			go func() {
				defer l.Close()
				c, err := l.Accept()
				if err == nil {
					_, err = fmt.Fprint(c, "tcp from ", c.RemoteAddr().(*net.TCPAddr).IP)
					c.Close()
				}
				done <- err
			}()
			continue
		}
		p, err := net.ListenPacket("udp", addr)
		if err != nil {
			return err
		}
		go func() {
			defer p.Close()
			buf := make([]byte, 1500)
			_, from, err := p.ReadFrom(buf)
			if err == nil {
				_, err = p.WriteTo(fmt.Appendf(nil, "udp from %s", from.(*net.UDPAddr).IP), from)
			}
			done <- err
		}()
	}
	fmt.Println("ready")
	for range args {
		if err := <-done; err != nil {
			return err
		}
	}
	return nil
}

// waitThenDialStderr is waitThenDial, with all output but "ready" on stderr.
func waitThenDialStderr(args []string) error {
	fmt.Println("ready")
	os.Stdout = os.Stderr
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return dial(args)
}

// waitThenDial prints "ready", waits until its input ends, and dials if it has arguments.
func waitThenDial(args []string) error {
	fmt.Println("ready")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil || len(args) == 0 {
		return err
	}
	return dial(args)
}
