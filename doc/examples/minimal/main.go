// Command minimal runs a program with a network of its own:
//
//	minimal curl https://example.com
package main

import (
	"context"
	"log"
	"os"
	"os/exec"

	"cleat/sandbox"
)

func main() {
	sandbox.Init()
	if len(os.Args) < 2 {
		log.Fatal("usage: minimal CMD [ARG…]")
	}
	network, err := sandbox.New(sandbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := network.Exec(context.Background(), cmd); err != nil {
		log.Fatal(err)
	}
}
