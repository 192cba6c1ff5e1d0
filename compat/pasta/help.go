package pasta

import (
	"fmt"
	"io"
)

// printHelp prints how the program is called.
func printHelp(w io.Writer) {
	fmt.Fprint(w, `Usage: pasta [OPTION]... [COMMAND] [ARGS]...
       pasta [OPTION]... PID
       pasta [OPTION]... --netns [PATH|NAME]

Gives a network namespace a network, without root: that of a process, that at a
path, or a new one for a command or a shell. This is cleat in pasta's place.

`)
	table().WriteHelp(w)
	fmt.Fprint(w, `
SPEC is none, or [ADDR[%LINK]/]ENTRY,ENTRY... with entries PORT, FIRST-LAST, either
followed by :PORT, :FIRST-LAST, :ADDR or :ADDR/PORT; ~PORT and ~FIRST-LAST leave
ports out; all is every port that isn't ephemeral; auto follows who listens.
`)
}
