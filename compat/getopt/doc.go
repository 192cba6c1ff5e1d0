// Package getopt reads a command line the way getopt_long(3) of the GNU C
// library does, so that programs which replace C programs understand what
// scripts, containers' engines and fingers are used to.
//
// # Theory of operation
//
// Parse walks the arguments once, from left to right, and reports what it met
// in that order. Options are:
//
//   - "-x", and several at once: "-xyz" is "-x -y -z".
//   - "-xVALUE" or "-x VALUE" where x takes an argument; the next argument is
//     taken whatever it looks like, so "-x -y" gives x the value "-y".
//   - "--name", or any beginning of a name that only one option has. Two names
//     of the same option don't make a beginning ambiguous, and a complete name
//     never is.
//   - "--name=VALUE" or "--name VALUE" where it takes an argument.
//
// An optional argument is taken only where it is attached: "-xVALUE",
// "--name=VALUE". "--" ends the options. "-" alone is not an option.
//
// Arguments that aren't options are collected; options may follow them, except
// where Grammar.InOrder ends the options at the first such argument, as
// programs want that run another program with its own options.
//
// An error ends the walk. Its text is the C library's; what was met before it
// is reported too, because "prog --version --nonsense" prints the version.
//
// A Table is what a program has to say about its options, once for reading them
// and for its help.
//
// # Limits
//
// Bytes, not letters: an option letter is one byte. POSIXLY_CORRECT is not
// looked at, and "-W name" is not the long option "--name".
//
// Sources: getopt_long(3); glibc, posix/getopt.c.
package getopt
