// Package getopt parses a command line as getopt_long(3) of the GNU C library does, so
// that programs which replace C programs accept the same command lines.
//
// # Theory of operation
//
// Table.Read walks the arguments once, from left to right, and applies the options in that
// order. Options are:
//
//   - "-x", and clusters: "-xyz" is "-x -y -z".
//   - "-xVALUE" or "-x VALUE" if x takes an argument. The next argument is taken whatever it looks like, so "-x -y" gives x the value "-y".
//   - "--name", or any unambiguous prefix. A complete name is never ambiguous.
//   - "--name=VALUE" or "--name VALUE" if it takes an argument.
//
// "--" ends the options. "-" alone is not an option.
//
// Arguments that are not options are collected; options may follow them. With
// Table.InOrder, the first such argument ends the options, for programs that run
// another program with its own options.
//
// An error ends the walk. Its text is the C library's. Options before it are applied,
// because "prog --version --nonsense" prints the version.
//
// The same Table prints the help.
//
// # Limits
//
// An option letter is one byte. Options with an optional argument are not supported.
// POSIXLY_CORRECT is ignored, and "-W name" is not the long option "--name".
//
// Sources: getopt_long(3); glibc, posix/getopt.c.
package getopt
