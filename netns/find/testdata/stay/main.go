// Stay is what runs in the tests' containers: it waits to be killed.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	killed := make(chan os.Signal, 1)
	signal.Notify(killed, syscall.SIGTERM, syscall.SIGPWR) // the latter is LXC's
	<-killed
}
