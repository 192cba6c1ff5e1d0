package names

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/lab"

	"golang.org/x/sys/unix"
)

// Environment variables that make the test binary another program.
const (
	// serverEnv: a name server. The arguments are its socket and resolv.conf. For each line
	// of its standard input it tries what it must not do, and prints what was possible.
	serverEnv = "CLEAT_TEST_NAME_SERVER"
	// lookupEnv: a program that looks up its arguments with Go's resolver.
	lookupEnv = "CLEAT_TEST_NAMES_LOOKUP"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(serverEnv) != "":
		os.Exit(serverProgram(os.Args[1], os.Args[2]))
	case os.Getenv(lookupEnv) != "":
		os.Exit(lookupProgram(os.Args[1:]))
	}
	os.Exit(lab.RunTests(m))
}

func serverProgram(path, resolvConf string) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			fmt.Println(strings.Join(allowedActions(path), "; "))
		}
	}()
	err := Run(ctx, Config{Path: path, ResolvConf: resolvConf, Warn: func(err error) { fmt.Fprintln(os.Stderr, err) }})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func lookupProgram(names []string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, name := range names {
		addrs, err := net.DefaultResolver.LookupHost(ctx, name)
		if err != nil {
			fmt.Println(name, err)
			continue
		}
		slices.Sort(addrs)
		fmt.Println(name, strings.Join(addrs, " "))
	}
	return 0
}
