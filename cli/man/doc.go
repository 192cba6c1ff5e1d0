// Package man has the command man, which writes the manual pages. They are made from the help
// of the commands (package help).
package man
