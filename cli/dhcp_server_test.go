package cli

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"cleat/network/dhcp/dhcptest"
)

// dhcpServerEnv, if set in the environment, makes the test binary a DHCP server.
const dhcpServerEnv = "CLEAT_TEST_DHCP_SERVER"

// writeDHCPServer writes a program to the directory of cleat that serves 192.0.2.10 and
// the following addresses on a link, and prints a line for each message that it receives:
//
//	dhcp-server LINK LIFETIME
//
// After SIGUSR1 it refuses every request. After SIGHUP it grants them without an answer,
// and after SIGUSR2 it does neither. SIGTERM ends it.
func writeDHCPServer(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	script := fmt.Sprintf("#!/bin/sh\n%s=1 exec %s \"$@\"\n", dhcpServerEnv, self)
	return os.WriteFile(filepath.Join(dir, "dhcp-server"), []byte(script), 0o755)
}

func runDHCPServer(args []string) int {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP, syscall.SIGTERM)
	lifetime, err := time.ParseDuration(args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	s := &dhcptest.Server{Lifetime: lifetime, Log: os.Stdout}
	stop, err := s.Listen(args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stop()
	fmt.Println("serving")
	for sig := range told {
		if sig == syscall.SIGTERM {
			break
		}
		s.Do(func() { s.SendNAK, s.NoAck = sig == syscall.SIGUSR1, sig == syscall.SIGHUP })
	}
	return 0
}
