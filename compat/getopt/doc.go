// Package getopt parses a command line as getopt_long(3) of the GNU C library does, so
// that programs which replace C programs accept the same command lines.
//
// # Theory of operation
//
// Parse walks the arguments once, from left to right, and returns the options in that
// order. Options are:
//
//   - "-x", and clusters: "-xyz" is "-x -y -z".
//   - "-xVALUE" or "-x VALUE" if x takes an argument. The next argument is taken whatever it looks like, so "-x -y" gives x the value "-y".
//   - "--name", or any unambiguous prefix. A prefix of two names of the same option is not ambiguous, and a complete name never is.
//   - "--name=VALUE" or "--name VALUE" if it takes an argument.
//
// An optional argument must be attached: "-xVALUE", "--name=VALUE". "--" ends the
// options. "-" alone is not an option.
//
// Arguments that are not options are collected; options may follow them. With
// Grammar.InOrder, the first such argument ends the options, for programs that run
// another program with its own options.
//
// An error ends the walk. Its text is the C library's. Options before it are returned as
// well, because "prog --version --nonsense" prints the version.
//
// A Table describes a program's options, for parsing and for the help.
//
// # Limits
//
// An option letter is one byte. POSIXLY_CORRECT is ignored, and "-W name" is not the long
// option "--name".
//
// Sources: getopt_long(3); glibc, posix/getopt.c.
package getopt
