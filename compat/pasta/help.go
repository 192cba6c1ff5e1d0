package pasta

import (
	"fmt"
	"io"
)

// printHelp prints the usage.
func printHelp(w io.Writer) {
	fmt.Fprint(w, `Usage: pasta [OPTION]... [COMMAND] [ARGS]...
       pasta [OPTION]... PID
       pasta [OPTION]... --netns [PATH|NAME]

Gives a network namespace a network, without root: the namespace of a process,
one given by path, or a new one for a command or a shell. This is cleat in place
of pasta.

`)
	table().WriteHelp(w)
	fmt.Fprint(w, `
SPEC is none, or [ADDR[%LINK]/]ENTRY,ENTRY... with entries PORT, FIRST-LAST,
either followed by :PORT, :FIRST-LAST, :ADDR or :ADDR/PORT. all and auto stand
for every port that a program listens on, except ephemeral ones. ~PORT and
~FIRST-LAST exclude ports.
`)
}
