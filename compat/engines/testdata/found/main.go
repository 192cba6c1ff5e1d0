// Found prints the result of find.Container for each argument, one a line: the reference,
// process, network namespace, and whether that is the host's; or the error and its hint.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"cleat/netns/find"
)

func main() {
	for _, word := range os.Args[1:] {
		fmt.Printf("%s: %s\n", word, look(word))
	}
}

func look(word string) string {
	f, err := find.Container(context.Background(), word, nil)
	if err != nil {
		advice := ""
		if e, has := err.(interface{ Hint() string }); has {
			advice = "; " + strings.ReplaceAll(e.Hint(), "\n", "; ")
		}
		return err.Error() + advice
	}
	ns, err := f.NS()
	if err != nil {
		return err.Error()
	}
	defer ns.Close()
	inode, err := ns.ID()
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s pid %d net %d owner %d host %v", f.Ref(), f.PID, inode, f.Owner, f.Host)
}
