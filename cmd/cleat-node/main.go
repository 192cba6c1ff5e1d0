// Command cleat-node makes this machine one of several hosts whose networks span all of them. `cleat-node --help`
// lists its commands.
package main

import (
	"os"

	"cleat/cli/node"
	"cleat/network/attach"
	"cleat/overlay"
)

func main() {
	os.Exit(node.Run(os.Args[1:], func(store *attach.Store, log func(string, ...any)) (overlay.Dataplane, error) {
		return newDataplane(store, log)
	}))
}
