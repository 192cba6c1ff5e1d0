package pasta

import (
	"fmt"
	"io"
	"strings"
)

// printHelp prints how the program is called.
func printHelp(w io.Writer) {
	fmt.Fprint(w, `Usage: pasta [OPTION]... [COMMAND] [ARGS]...
       pasta [OPTION]... PID
       pasta [OPTION]... --netns [PATH|NAME]

Gives a network namespace a network, without root: that of a process, that at a
path, or a new one for a command or a shell. This is cleat in pasta's place.

`)
	for _, r := range table() {
		if r.help != "" {
			fmt.Fprint(w, "  "+r.usage())
		}
	}
	fmt.Fprint(w, `
SPEC is none, or [ADDR[%LINK]/]ENTRY,ENTRY... with entries PORT, FIRST-LAST, either
followed by :PORT, :FIRST-LAST, :ADDR or :ADDR/PORT; ~PORT and ~FIRST-LAST leave
ports out; all is every port that isn't ephemeral; auto follows who listens.
`)
}

// usage is the option's line of the help.
func (r row) usage() string {
	left := "    --" + r.name
	if r.short != 0 {
		left = "-" + string(r.short) + ", --" + r.name
	}
	if r.arg != "" {
		left += " " + r.arg
	}
	const column = 30
	if len(left) >= column {
		return left + "\n  " + strings.Repeat(" ", column) + r.help + "\n"
	}
	return left + strings.Repeat(" ", column-len(left)) + r.help + "\n"
}
